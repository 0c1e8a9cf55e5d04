"""In which form does a chat template take a conversation?

Some read a message's content as a text only, some as a list of parts only, some both; most print
the arguments of a call as an object, some as a text. A template silently drops what it does not
read, so each form is tried once, on a conversation of a few words. Forms that a template takes are
passed on as the client sent them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

Messages = list[dict[str, Any]]
#: Separates the parts of a message that are joined into one text, as in vLLM and llama.cpp.
BETWEEN_PARTS: Final = "\n"
#: The member for arguments that are not a JSON object, if a template takes objects only.
AS_TEXT: Final = "arguments"

#: Texts of the trial conversation.
_ONE, _OTHER, _QUESTION = "Quixotic", "zephyrs", "vex"
#: Nine letters, as Mistral's templates require of an id.
_ID: Final = "quizzical"
#: Lines that a template may run for one trial.
_MOST_LINES: Final = 20_000


def text_of(content: Any) -> Any:
    """A message's content as a text; None becomes "". Other values stay as they are."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    known = [text for text in texts if isinstance(text, str)]
    return BETWEEN_PARTS.join(known) if len(known) == len(texts) else content


class ChatForm:
    """The form that one chat template takes; `render` is that template."""

    def __init__(self, render: Callable[[Messages], str]) -> None:
        self._render = render
        self._contents: dict[tuple[str, bool, str], bool] = {}
        self._arguments: dict[bool, bool] = {}

    def of(self, messages: Sequence[Mapping[str, Any]]) -> Messages:
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        calls = made.get("tool_calls")
        if "tool_calls" in made and not calls:  # many templates only check that it is there
            del made["tool_calls"]
        role = made.get("role")
        self._set_content(made, role if role in _AROUND else "user", bool(calls))
        if calls and isinstance(calls, list):
            made["tool_calls"] = [self._call(call) for call in calls]
        return made

    def _set_content(self, message: dict[str, Any], role: str, calls: bool) -> None:
        """Leave the content as it is if the template takes it, else convert it to a form that it
        takes, if there is one."""
        for form in _FORMS[_form_of(message)]:
            if self._takes(role, calls, form):
                break
        else:
            return
        if form == "text":
            message["content"] = text_of(message.get("content"))
        elif form == "part":
            message["content"] = [{"type": "text", "text": text_of(message.get("content"))}]

    def _takes(self, role: str, calls: bool, form: str) -> bool:
        key = role, calls, form
        if key not in self._contents:
            tried: dict[str, Any] = {"role": role, **_TRIED[form]}
            if calls:
                tried["tool_calls"] = [self._call(_called({"k": "v"}))]
            shown = self._shown(tried)
            self._contents[key] = shown is not None and _is_read(form, shown)
        return self._contents[key]

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        call_arguments = function["arguments"]
        if isinstance(call_arguments, Mapping):
            if self._takes_arguments(objects=True) or not self._takes_arguments(objects=False):
                return call
            call_arguments = json.dumps(call_arguments, ensure_ascii=False)
        elif not isinstance(call_arguments, str) or self._takes_arguments(objects=False):
            return call
        else:
            call_arguments = {AS_TEXT: call_arguments}
        return {**call, "function": {**function, "arguments": call_arguments}}

    def _takes_arguments(self, *, objects: bool) -> bool:
        if objects not in self._arguments:
            tried: dict[str, Any] = {"role": "assistant", "content": ""}
            self._set_content(tried, "assistant", calls=False)
            tried["tool_calls"] = [_called({_ONE: _OTHER} if objects else _OTHER)]
            shown = self._shown(tried)
            self._arguments[objects] = (
                shown is not None and _OTHER in shown and f"{{'{_ONE}'" not in shown
            )
        return self._arguments[objects]

    def _shown(self, message: dict[str, Any]) -> str | None:
        """A conversation with this message, rendered; None: the template refuses it."""
        before, after = _AROUND[message["role"]]
        question = {"role": "user", "content": _QUESTION}
        if message["role"] != "user":
            self._set_content(question, "user", calls=False)
        if message.get("tool_calls"):  # followed by a result, not by the user
            after = 0
        talk = [dict(question)] * before + [message] + [dict(question)] * after
        if message["role"] == "tool":
            talk[1:1] = [self._message({"role": "assistant", "tool_calls": [_called({"k": "v"})]})]
            message.update(tool_call_id=_ID, name="f")
        try:
            with limited(_MOST_LINES):
                return self._render(talk)
        except Exception:  # noqa: BLE001 - a template is a program: it may raise anything
            return None


#: The number of user messages before and after a message of this role.
_AROUND: Final = {"user": (0, 0), "system": (0, 1), "assistant": (1, 1), "tool": (1, 0)}
_TEXT: Final = {"type": "text", "text": _ONE}
#: The trial message of each form of a content.
_TRIED: Final[dict[str, dict[str, Any]]] = {
    "absent": {},
    "null": {"content": None},
    "text": {"content": _ONE},
    "part": {"content": [_TEXT]},
    "parts": {"content": [_TEXT, {"type": "text", "text": _OTHER}]},
}
#: The forms to which each form may be converted, the best first.
_FORMS: Final = {
    "absent": ("absent", "text", "part"),
    "null": ("null", "text", "part"),
    "text": ("text", "part"),
    "parts": ("parts", "text", "part"),
    "other": (),
}


def _is_read(form: str, shown: str) -> bool:
    """Whether a content of this form was read, and not printed as a Python or JSON value."""
    if form in ("null", "absent"):
        return "None" not in shown
    if form == "text":
        return _ONE in shown
    printed = f"'{_ONE}'" in shown or f'"{_ONE}"' in shown
    return _ONE in shown and not printed and (form == "part" or _OTHER in shown)


def _form_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return "null" if "content" in message else "absent"
    if isinstance(content, str):
        return "text"
    return "parts" if text_of(content) is not content else "other"


def _called(arguments: Any) -> dict[str, Any]:
    return {"id": _ID, "type": "function", "function": {"name": "f", "arguments": arguments}}


#: A conversation of 1,000 messages with tools runs about 50,000 lines. A million lines take 0.5 s.
MOST_LINES: Final = 1_000_000
#: The file name that Jinja gives a template compiled from a string.
_FILE: Final = "<template>"


class TooManyTurns(Exception):
    """A template ran more lines than allowed."""


@contextmanager
def limited(most_lines: int = MOST_LINES) -> Iterator[None]:
    """Raise TooManyTurns when the templates rendered in this block run more than `most_lines`
    lines.

    Applies to the calling thread. Costs about 0.2 us for each line.
    """
    left = most_lines

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooManyTurns(f"it runs more than {most_lines} lines")
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename == _FILE else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)
