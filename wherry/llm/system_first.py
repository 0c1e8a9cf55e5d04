"""Which conversation takes a template that wants to have all that the system says at first?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wherry.llm.chat_form import Messages, text_of
from wherry.llm.template_turns import TooManyTurns


def rendered(render: Callable[[Messages], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what the template `render` makes of a conversation.

    If it refuses one in which the system speaks between two turns, as Claude Code has it, then
    of one that begins with all that the system says. Raises what the template does.
    """
    given = [dict(message) for message in messages]
    try:
        return render([dict(message) for message in given])
    except TooManyTurns:
        raise
    except Exception:  # a template is a program: it may raise anything
        if (moved := system_first(given)) is None:
            raise
    return render(moved)


def system_first(messages: Messages) -> Messages | None:
    """The conversation with what the system says in front; None: it is there already."""
    said = [one for one in messages if one.get("role") == "system"]
    if said == messages[: len(said)] and len(said) < 2:
        return None
    texts = [text_of(one.get("content")) for one in said]
    if not all(isinstance(text, str) for text in texts):
        return None
    others = [one for one in messages if one.get("role") != "system"]
    return [{"role": "system", "content": "\n\n".join(map(str, texts))}, *others]
