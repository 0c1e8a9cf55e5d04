"""How does a person call a model from the shell? `wherry call` and `wherry models`."""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from wherry.cli.show import as_json, print_line
from wherry.client import Client
from wherry.client.wire import ModelDescription, by_place
from wherry.values.datatypes import BYTES, Form
from wherry.values.errors import ConfigError, WherryError


def call(args: argparse.Namespace) -> int:
    """Print one line for each row's result, or for each response of a stream."""
    with client_of(args) as client:
        described = client.describe(args.model)
        for row in _rows(args, described):
            placed, named = by_place(described, row)
            if args.stream or described.streams:
                for response in client.stream(args.model, *placed, timeout=args.timeout, **named):
                    _print(response, args.json)
            else:
                _print(client.infer(args.model, *placed, timeout=args.timeout, **named), args.json)
    return 0


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
    except BrokenPipeError:
        raise  # of our own stdout
    except (OSError, http.client.HTTPException) as error:
        raise WherryError(
            f"{args.url}: {error}; is a server running there? (--url, WHERRY_URL)"
        ) from None


def _rows(args: argparse.Namespace, model: ModelDescription) -> Iterator[dict[str, Any]]:
    kinds = {
        tensor.name: tensor.datatype is BYTES and tensor.form is not Form.JSON
        for tensor in model.inputs
    }
    named: dict[str, Any] = {}
    for text in args.input:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--input {text!r}: write NAME=VALUE")
        named[name] = _value(value, text_wanted=kinds.get(name, True))
    values = list(_values(args.value))
    if not values:
        if not named:
            names = " ".join(f"--input {name}=..." for name in kinds)
            raise ConfigError(f"nothing to call {args.model!r} with; give a VALUE, or {names}")
        yield named
        return
    free = [name for name in kinds if name not in named]
    if len(free) != 1 and named:
        raise ConfigError(f"VALUE and --input together leave {free} open; name each input")
    if not free or (len(free) > 1 and len(values) > 1):
        raise ConfigError(f"{args.model!r} has {len(kinds)} inputs; name each with --input")
    for value in values:
        yield {**named, free[0]: _value(value, text_wanted=kinds[free[0]])}


def _values(values: list[str]) -> Iterator[str]:
    for value in values:
        if value == "-":
            yield from (line.rstrip("\n") for line in sys.stdin)
        else:
            yield value


def _value(text: str, *, text_wanted: bool) -> Any:
    if text_wanted:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ConfigError(f"{text!r} is no JSON; the input is no text") from None


def _print(result: Any, json_wanted: bool) -> None:
    print_line(result if isinstance(result, str) and not json_wanted else as_json(result, None))
    sys.stdout.flush()  # a stream is read as it comes


def _tensor(member: dict[str, Any]) -> str:
    optional = " (optional)" if member.get("optional") else ""
    return f"{member['name']} {member['datatype']}{member['shape']}{optional}"
