"""How are settings and values shown on stdout? And `wherry config`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wherry.core.api import Form, Signature, TensorSpec, one_line
from wherry.server.cli.settings import read_settings
from wherry.server.options import OPTIONS

if TYPE_CHECKING:  # a client's modules take time
    from wherry.core.api import ModelDescription


def show_settings(args: argparse.Namespace) -> int:
    """Print what `wherry serve` with the same flags would use."""
    settings = read_settings(vars(args), os.environ)
    rows = []
    for name in OPTIONS:
        value = settings.options.value(name)
        if name == "api_key":
            value = f"({len(value)} keys)" if value else "(none)"  # logs and tickets are read
        elif name in ("http_restricted_api", "grpc_restricted_protocol"):
            value = tuple(rule.partition("=")[0] + "=..." for rule in value)
        elif name == "cache_config":
            value = tuple(_without_password(word) for word in value)
        rows.append((name, shown(value), settings.origins.get(name, "default")))
    print_table(rows)
    for model, table in settings.models.items():
        print_line("")
        print_line(f"models.{model}")
        where = f"{settings.file} [models.{model}]"
        print_table([(name, shown(value), where) for name, value in table.items()])
    return 0


def _without_password(word: str) -> str:
    setting, equals, _ = word.partition("=")
    return f"{setting}=..." if equals and "password" in setting else word


def shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) and value else as_json(value)


def as_json(value: Any, most: int | None = 200) -> str:
    """JSON in one line, cut off after `most` characters."""
    text = msgspec.json.encode(value, enc_hook=_plain).decode()
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def print_table(rows: Iterable[tuple[str, str, str]], indent: str = "") -> None:
    rows = list(rows)
    first, second = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for name, value, origin in rows:
        print_line(f"{indent}{name:<{first}}  {value:<{second}}  {origin}")


def print_line(line: str) -> None:
    write(line + "\n")


def write(text: str) -> None:
    """Write a text to stdout; what of it could control a terminal is escaped on one."""
    sys.stdout.write(one_line(text, keep="\n\t") if sys.stdout.isatty() else text)


def printable(text: str, keep: str = "") -> str:
    """A text as it may be written to a terminal: controls, escapes, changes of direction and halves
    of pairs are shown as their numbers, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def chats(model: ModelDescription | Signature) -> bool:
    """Whether a text for the model is a user's message to it."""
    forms = {tensor.name: tensor.form for tensor in model.inputs}
    texts = {tensor.name for tensor in model.outputs if tensor.form is Form.TEXT}
    answers_text = "text" in texts or (bool(texts) and len(model.outputs) == 1)
    return answers_text and forms.get("messages") is Form.JSON


def signature_in_words(signature: Signature) -> str:
    """As its function would be written: (text: str) -> str."""
    inputs = ", ".join(f"{one.name}: {_in_words(one)}" for one in signature.inputs)
    outputs = ", ".join(
        _in_words(one) if signature.returns == "single" else f"{one.name}: {_in_words(one)}"
        for one in signature.outputs
    )
    stream = "stream of " * signature.streams
    return printable(f"({inputs}) -> {stream}{outputs}")


def _in_words(spec: TensorSpec) -> str:
    """What a row of the tensor is: str, image, FP32[384]."""
    if spec.media is not None:
        word: str = spec.media.kind
    elif spec.form is Form.SCALARS:
        word = _NUMBERS.get(spec.datatype.name, spec.datatype.name)
    else:
        word = _WORDS.get(spec.form, spec.datatype.name)
    default = " = ..." if spec.optional else ""
    if spec.default is not None:
        default = f" = {spec.default!r}"
    shape = f"[{', '.join('*' if n < 0 else str(n) for n in spec.shape)}]" if spec.shape else ""
    return f"{word}{shape}{default}"


_WORDS: Final = {Form.TEXT: "str", Form.BYTES: "bytes", Form.JSON: "object"}
#: Python's names, of what a column of them is.
_NUMBERS: Final = {"INT64": "int", "FP64": "float", "BOOL": "bool"}
