"""How do the messages of a chat become those that a chat template takes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.json_faults import json_in


def conversation(
    messages: Sequence[Mapping[str, Any]], where: str = "messages"
) -> list[dict[str, Any]]:
    """Messages for a chat template: as they were sent, but with the arguments of calls as objects,
    and parts of one type. `where` is the field that has them."""
    if not messages:
        raise BadField(where, "must hold at least one message")
    return [_message(message, f"{where}[{i}]") for i, message in enumerate(messages)]


ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
#: The parts that are texts, in whatever form of OpenAI's, and the member that has it.
PARTS: Final = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
}
#: The roles whose messages may be without a content: that of an answer which was only thought, or
#: that has called, is null, and so may be what a function gives.
SILENT: Final = ("assistant", "tool", "function")
#: Longest role, in characters.
MOST_ROLE_CHARS: Final = 64


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= MOST_ROLE_CHARS:
        problem = f"must be one of {', '.join(ROLES)}, or another that the chat template knows"
        raise BadField(f"{where}.role", problem)
    made = {**message, "role": "system" if role == "developer" else role}
    if made.get("content") is not None:
        made["content"] = _content(made["content"], f"{where}.content")
    elif role not in SILENT:
        raise BadField(f"{where}.content", "is missing")
    calls = made.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise BadField(f"{where}.tool_calls", "must be a list of calls")
        made["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    else:  # null and an empty list are no calls; many templates ask only whether it is there
        made.pop("tool_calls", None)
    return made


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A text, or parts that are texts, as chat templates have them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(where, "must be a text or a list of parts")
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in PARTS:
        problem = f"only parts of type 'text' are supported, not {str(kind)[:40]!r}"
        raise BadField(where, problem)
    text = part.get(PARTS[kind])
    if not isinstance(text, str):
        raise BadField(f"{where}.{PARTS[kind]}", "must be a text")
    return part if kind == "text" else {"type": "text", "text": text}


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(where, "must have a function with a name and arguments")
    return {**call, "function": {**function, "arguments": arguments_in(function.get("arguments"))}}


def arguments_in(arguments: Any) -> Any:
    """The arguments of a call as an object. What a model wrote that is none, or was cut off, stays
    the text that it is: its answer is to be taken back as it was given."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        found = json_in(arguments.strip() or "{}", "")
    except BadField:
        return arguments
    return found if isinstance(found, dict) else {} if found is None else arguments
