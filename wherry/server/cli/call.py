"""How does a person call a model from the shell? `wherry call` and `wherry models`."""

from __future__ import annotations

import argparse
import difflib
import http.client
import os
import re
import ssl
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from wherry.core.api import (
    BYTES,
    Client,
    ConfigError,
    DeadlineExceeded,
    Form,
    InvalidRequest,
    ModelDescription,
    ModelNotFound,
    WherryError,
    advice,
    by_place,
)
from wherry.server.cli.show import as_json, chats, print_line, write

Row = dict[str, Any]


def user_message(text: str) -> Row:
    return {"messages": [{"role": "user", "content": text}]}


def as_prompt(row: Row, refusal: InvalidRequest) -> Row:
    """The row with the user's text as a prompt, if the model has no template for it: a base
    model goes on with a text. Raises the refusal if it is for another reason."""
    match row:
        case {"messages": [{"role": "user", "content": str(text)}], **rest}:
            if "no chat template" in str(refusal):
                sys.stderr.write("wherry: no chat template: the model goes on with the text\n")
                return {**rest, "prompt": text}
    raise refusal


def is_parameter(word: str) -> bool:
    """Whether a word of the command line sets a parameter of the answer, as max_tokens=20 does."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier() and name.islower()


def parameter(value: str) -> Any:
    """A parameter's value: JSON, or else a text."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def write_text(responses: Iterable[Any]) -> None:
    """Write an answer's text as it comes, and others of the same request (`n`) behind it."""
    texts: dict[int, str] = {0: ""}
    try:
        for response in responses:
            piece = response if isinstance(response, dict) else {"text": response}
            index, text = piece.get("index", 0), piece.get("text", "")
            texts[index] = texts.get(index, "") + text
            if not index:
                write(text)
                sys.stdout.flush()
    except BaseException:  # the message about an answer that was cut off has a line of its own
        if texts[0]:
            print_line("")
        raise
    first, *others = texts.values()
    for text in ("" if first.endswith("\n") else "\n", *(f"{other}\n" for other in others)):
        write(text)
    sys.stdout.flush()


def call(args: argparse.Namespace) -> int:
    """Print one line for each row's result, or for each response of a stream."""
    with client_of(args) as client:
        described = client.describe(args.model)
        for row in _rows(args, described):
            try:
                _answer(client, args, described, row)
            except InvalidRequest as error:
                for name in _files_of(described) & row.keys():
                    if isinstance(row[name], str):
                        raise InvalidRequest(f"{error} (a file is passed as @NAME)") from None
                if "missing required" in str(error):
                    names = " ".join(f"{one.name}=..." for one in described.inputs)
                    raise InvalidRequest(f"{error} (wherry call {args.model} {names})") from None
                _answer(client, args, described, as_prompt(row, error))
    return 0


def _answer(
    client: Client, args: argparse.Namespace, model: ModelDescription, row: dict[str, Any]
) -> None:
    placed, named = by_place(model, row)
    if not (args.stream or model.streams):
        _print_result(client.infer(args.model, *placed, timeout=args.timeout, **named), args)
        return
    responses = client.stream(args.model, *placed, timeout=args.timeout, **named)
    if chats(model) and not args.json:
        write_text(responses)
    else:
        for response in responses:
            _print_result(response, args)


def models(args: argparse.Namespace) -> int:
    """Print name, version, state, inputs and outputs of each model."""
    with client_of(args) as client:
        for entry in client.models():
            if args.json:
                _print(entry, True)
                continue
            name = f"{entry['name']}:{entry['version']}".rstrip(":")
            inputs = ", ".join(map(_tensor, entry["inputs"]))
            outputs = ", ".join(map(_tensor, entry["outputs"]))
            reason = f"  {entry['reason']}" if entry["reason"] else ""
            _print(f"{name}  {entry['state']}{reason}  ({inputs}) -> ({outputs})", False)
    return 0


@contextmanager
def client_of(args: argparse.Namespace) -> Iterator[Client]:
    """A client of the server that the flags name. WherryError if it cannot be reached."""
    tls = ssl.create_default_context(cafile=args.ssl_ca) if args.ssl_ca else None
    try:
        with Client(args.url, api_key=args.api_key, ssl_context=tls) as client:
            yield client
    except ModelNotFound as error:
        raise WherryError(f"{args.url}: {error}{_meant(args)}") from None
    except (BrokenPipeError, DeadlineExceeded):
        raise  # of our own stdout; of a server that runs
    except (OSError, http.client.HTTPException) as error:
        detail = str(error).removeprefix(f"{args.url.rstrip('/')}: ")
        detail = re.sub(r"^\[Errno -?\d+\] ", "", detail)
        raise WherryError(f"{args.url}: {detail}; {advice(error)} (--url, WHERRY_URL)") from None


def _meant(args: argparse.Namespace) -> str:
    """A guess at the model that was meant, or all that there are."""
    model = getattr(args, "model", "").partition(":")[0]
    if not model:
        return ""
    try:
        with client_of(argparse.Namespace(**{**vars(args), "model": ""})) as client:
            names = sorted({str(entry["name"]) for entry in client.models()})
    except (WherryError, ValueError):  # no server of ours, or one that does not list its models
        return ""
    if close := difflib.get_close_matches(model, names, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; it has: {', '.join(names[:20])}" if names else ""


def _rows(args: argparse.Namespace, model: ModelDescription) -> Iterator[Row]:
    kinds = {
        tensor.name: tensor.datatype is BYTES and tensor.form is not Form.JSON
        for tensor in model.inputs
    }
    files = _files_of(model)
    named: Row = {}
    parameters: Row = {}
    words: list[str] = []
    for word in args.value:
        name, equals, value = word.partition("=")
        # The text for a model's only input may begin so, too.
        one = name in kinds if len(kinds) > 1 else name in files and value.startswith("@")
        if equals and one:
            named[name] = _value(value, is_text=kinds[name], file=name in files, name=name)
        elif chats(model) and is_parameter(word):
            parameters[name] = parameter(value)
        else:
            words.append(word)
    if parameters:
        named["parameters"] = {**named.get("parameters", {}), **parameters}
    values = list(_values(words))
    if not values:
        if not named.keys() - {"parameters"}:
            names = " ".join(f"{name}=..." for name in kinds) if len(kinds) > 1 else "a VALUE"
            raise ConfigError(f"nothing to call {args.model!r} with; give {names}")
        yield named
        return
    if len(kinds) > 1 and not named and (rows := _whole_rows(values, kinds)):
        yield from rows
        return
    if chats(model) and not named.keys() & {"messages", "prompt", "token_ids"}:
        for value in values:
            yield {**named, **user_message(_value(value, is_text=True, file=False))}
        return
    free = [name for name in kinds if name not in named]
    # A value alone is the first input's: the others may have defaults.
    if not free or (len(free) > 1 and (named or len(values) > 1)):
        names = ", ".join(kinds)
        raise ConfigError(f"which of {names} is {values[0]!r}? Write NAME=VALUE for each")
    for value in values:
        name, is_text = free[0], kinds[free[0]]
        yield {**named, name: _value(value, is_text=is_text, file=name in files, name=name)}


def _whole_rows(values: list[str], names: Collection[str]) -> list[dict[str, Any]]:
    """The rows that JSON objects of several inputs are; none if one of them is another object."""
    try:
        rows = [msgspec.json.decode(value, type=dict[str, Any]) for value in values]
    except msgspec.DecodeError:
        return []
    return rows if all(row and row.keys() <= set(names) for row in rows) else []


def _values(values: list[str]) -> Iterator[str]:
    for value in values:
        if value == "-":
            yield from (line.rstrip("\n") for line in sys.stdin)
        else:
            yield value


def _files_of(model: ModelDescription) -> set[str]:
    """The inputs that @FILE is allowed for: all but texts, which may begin so."""
    return {
        tensor.name
        for tensor in model.inputs
        if tensor.datatype is not BYTES or tensor.form in (Form.BYTES, Form.JSON)
    }


def _file(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"@{path}: {error.strerror}") from None


def _value(text: str, *, is_text: bool, file: bool, name: str = "") -> Any:
    if not file:
        return _in_utf8(text, bytes_do=False)
    if text.startswith("@@") and is_text:
        return text[1:]
    data = _file(text[1:]) if text.startswith("@") else None
    if data is None and os.path.isfile(text):
        problem = f"{text!r} names a file, and the input is not text"
        raise ConfigError(f"{problem}; did you mean @{text}?")
    if is_text:
        return _in_utf8(text, bytes_do=True) if data is None else data
    try:
        return msgspec.json.decode(text if data is None else data)
    except msgspec.DecodeError as error:
        problem = f"input {name!r} is not text" if data is None else str(error)
        raise ConfigError(f"{text!r} is not JSON; {problem}") from None


def _in_utf8(text: str, *, bytes_do: bool) -> str | bytes:
    """An argument as it was typed: Python has read it in the locale's encoding, whose C has no
    letters beyond ASCII. What is not UTF-8 goes as bytes, where these do."""
    if text.isascii():
        return text
    data = text.encode("utf-8", "surrogateescape")
    try:
        return data.decode()
    except UnicodeDecodeError:
        if bytes_do:
            return data
        raise ConfigError(f"{text!a} is not text in UTF-8, as the input must be") from None


def _print_result(result: Any, args: argparse.Namespace) -> None:
    if isinstance(result, bytes) and not args.json:
        _write(result)
        return
    if isinstance(result, bytes):
        result = {"b64": result}
    elif isinstance(result, dict):
        result = {
            name: {"b64": value} if isinstance(value, bytes) else value
            for name, value in result.items()
        }
    _print(result, args.json)


def _write(data: bytes) -> None:
    """Write bytes to stdout; to a terminal only if they are text."""
    if sys.stdout.isatty():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if not text.replace("\n", "").replace("\t", "").isprintable():
            raise ConfigError(f"the result is {len(data)} bytes, no text; write them with > FILE")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print(result: Any, whole_json: bool) -> None:
    print_line(result if isinstance(result, str) and not whole_json else as_json(result, None))
    sys.stdout.flush()  # a stream is read as it comes


def _tensor(member: dict[str, Any]) -> str:
    optional = " (optional)" if member.get("optional") else ""
    return f"{member['name']} {member['datatype']}{member['shape']}{optional}"
