"""llm/formats/answer_text.py: a model's families, and which special tokens are part of its text."""

from __future__ import annotations

import pytest

from wherry.core.values.errors import ConfigError
from wherry.llm.formats.answer_text import ModelStyle, checked

SPECIAL = {"<s>": 1, "</s>": 2, "[TOOL_CALLS]": 3, "[ARGS]": 4, "[THINK]": 5, "[/THINK]": 6}
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS] [THINK]"


def test_the_template_shows_the_families() -> None:
    style = ModelStyle(MISTRAL, SPECIAL)
    assert (style.tools, style.thoughts) == ("mistral", "mistral")
    plain = ModelStyle("{{ messages }}", {})
    assert (plain.tools, plain.thoughts) == ("hermes", "none")


def test_a_setting_comes_before_the_template() -> None:
    style = ModelStyle(MISTRAL, SPECIAL, tools="glm", thoughts="none")
    assert (style.tools, style.thoughts) == ("glm", "none")


@pytest.mark.parametrize("end", ["<think>", "<|im_start|>assistant\n<think>\n"])
def test_a_prompt_may_open_the_thoughts(end: str) -> None:
    style = ModelStyle("<think>", {})
    assert style.of_answer(end) == {"tools": "hermes", "thoughts": "think", "opened": True}
    assert not style.of_answer(end + "\n</think>\n\n")["opened"]
    assert style.thoughts_of(end + "\n</think>\n\n") is None


def test_a_label_behind_the_mark_belongs_to_it() -> None:
    style = ModelStyle("<|channel>thought <channel|>", {})
    assert style.thoughts == "gemma4"
    for end in ("<|channel>", "<|channel>thought\n"):
        assert style.of_answer(end)["opened"]
        assert style.thoughts_of(end) == ("", "<channel|>")


def test_gpt_oss_may_think_before_a_call_that_must_be_made() -> None:
    style = ModelStyle("<|channel|>analysis<|message|>", {})
    assert style.thoughts_of("<|start|>assistant") == ("<|channel|>", "<|end|>")


def test_marks_stay_and_other_special_tokens_do_not() -> None:
    style = ModelStyle(MISTRAL, SPECIAL)
    assert style.hidden(calls=True) == frozenset((1, 2))
    assert style.hidden(calls=False) == frozenset((1, 2, 3, 4))
    assert ModelStyle("<tool_call>", SPECIAL).hidden(calls=True) is None


@pytest.mark.parametrize("setting", ["tool_parser", "reasoning_parser"])
def test_an_unknown_family_is_refused_with_the_known_ones(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} must be one of auto, none, .*mistral"):
        checked(setting, "nobody")
    assert checked(setting, "auto") == "auto"
