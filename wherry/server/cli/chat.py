"""How is a model that chats talked to from the shell?"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from wherry.core.api import Form, InvalidRequest, ModelDescription
from wherry.server.cli.show import print_line, write

Row = dict[str, Any]


def chats(model: ModelDescription) -> bool:
    """Whether a text for the model is what a user says to it."""
    forms = {tensor.name: tensor.form for tensor in model.inputs}
    texts = {tensor.name for tensor in model.outputs if tensor.form is Form.TEXT}
    told = "text" in texts or (bool(texts) and len(model.outputs) == 1)
    return told and forms.get("messages") is Form.JSON


def user_says(text: str) -> Row:
    """The row of a conversation that begins."""
    return {"messages": [{"role": "user", "content": text}]}


def as_prompt(row: Row, refusal: InvalidRequest) -> Row:
    """The row with what the user says as a prompt, if the model has no template for it: a base
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
    except BaseException:  # what is said of an answer that was cut off has a line of its own
        if texts[0]:
            print_line("")
        raise
    first, *others = texts.values()
    for text in ("" if first.endswith("\n") else "\n", *(f"{other}\n" for other in others)):
        write(text)
    sys.stdout.flush()
