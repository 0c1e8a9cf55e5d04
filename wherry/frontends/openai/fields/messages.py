"""How do the messages of a chat become those that a chat template takes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.json_faults import json_in


def conversation(
    messages: Sequence[Mapping[str, Any]], where: str = "messages"
) -> list[dict[str, Any]]:
    """Messages as a chat template takes them: text, and arguments of calls as objects. `where` is
    the field that has them."""
    if not messages:
        raise BadField(where, "must hold at least one message")
    return [_message(message, f"{where}[{i}]") for i, message in enumerate(messages)]


ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
#: The parts that are texts, in whatever form of OpenAI's, and the member that has it.
PARTS: Final = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
}
#: What stands between the parts of a message, as vLLM and llama.cpp have it.
BETWEEN_PARTS: Final = "\n"
#: Longest role, in characters.
MOST_ROLE_CHARS: Final = 64


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= MOST_ROLE_CHARS:
        problem = f"must be one of {', '.join(ROLES)}, or another that the chat template knows"
        raise BadField(f"{where}.role", problem)
    made = {name: value for name, value in message.items() if value is not None}
    made["role"] = "system" if role == "developer" else role
    if "content" in made:
        made["content"] = _text(made["content"], f"{where}.content")
    elif not (role == "assistant" and made.get("tool_calls")):
        raise BadField(f"{where}.content", "is missing")
    else:
        made["content"] = ""
    if "tool_calls" in made:
        if not isinstance(made["tool_calls"], list):
            raise BadField(f"{where}.tool_calls", "must be a list of calls")
        made["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(made["tool_calls"])
        ]
    return made


def _text(content: Any, where: str) -> str:
    """A text, or parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(where, "must be a text or a list of parts")
    texts: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in PARTS:
            shown = str(kind)[:40]
            problem = f"only parts of type 'text' are supported, not {shown!r}"
            raise BadField(f"{where}[{i}]", problem)
        text = part.get(PARTS[kind])
        if not isinstance(text, str):
            raise BadField(f"{where}[{i}].{PARTS[kind]}", "must be a text")
        texts.append(text)
    return BETWEEN_PARTS.join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(where, "must have a function with a name and arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json_in(arguments or "{}", f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}
