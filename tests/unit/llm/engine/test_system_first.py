"""What does a template get that refuses a system which speaks between two turns?"""

from __future__ import annotations

from typing import Any

import pytest

from wherry.llm.engine.chat_form import Messages, TooManyTurns
from wherry.llm.engine.tokenizer import rendered


def said(role: str, content: Any = "") -> dict[str, Any]:
    return {"role": role, "content": content or role}


def strict(messages: Messages) -> str:
    """As Gemma's and Mistral's templates: the system may only be the first."""
    for place, one in enumerate(messages):
        if one["role"] == "system" and place:
            raise ValueError("System message must be at the beginning.")
    return "|".join(f"{one['role']}:{one['content']}" for one in messages)


def test_what_the_system_says_goes_to_the_front_where_a_template_wants_it() -> None:
    talk = [said("system", "a"), said("user"), said("system", "b"), said("assistant")]
    assert rendered(strict, talk) == "system:a\n\nb|user:user|assistant:assistant"
    assert rendered(strict, talk[1:]) == "system:b|user:user|assistant:assistant"
    two = [said("system", "a"), said("system", "b"), said("user")]
    assert rendered(strict, two) == "system:a\n\nb|user:user"


def test_a_template_that_takes_it_gets_the_conversation_as_it_is() -> None:
    talk = [said("user"), said("system"), said("user")]
    assert rendered(lambda messages: str(messages), talk) == str(talk)


@pytest.mark.parametrize(
    "talk",
    [
        [said("user")],
        [said("system"), said("user")],
        [said("user"), said("system", [{"type": "text"}])],
    ],
)
def test_what_moving_does_not_mend_is_raised_as_it_was(talk: Messages) -> None:
    calls: list[Messages] = []

    def refuses(messages: Messages) -> str:
        calls.append(messages)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rendered(refuses, talk)
    assert len(calls) == 1


def test_a_template_that_runs_too_long_is_not_run_again() -> None:
    calls: list[Messages] = []

    def endless(messages: Messages) -> str:
        calls.append(messages)
        raise TooManyTurns("it runs")

    with pytest.raises(TooManyTurns):
        rendered(endless, [said("user"), said("system")])
    assert len(calls) == 1
