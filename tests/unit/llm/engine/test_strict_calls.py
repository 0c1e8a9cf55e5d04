"""Calls have their schema, wherever the model makes them; text is free.

`llm/engine/constraint.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.unit.llm.engine import tiny
from tests.unit.llm.formats.test_families import joined
from wherry.core.values.errors import InvalidRequest
from wherry.llm import LLM
from wherry.llm.engine.constraint import (
    AnswerForm,
    FormedCalls,
    Grammars,
    are_strict,
    strict_functions,
)
from wherry.llm.engine.prompt import ThoughtMarks, ThoughtsFirst
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.families import TOOL_FAMILIES

pytest.importorskip("torch")
pytest.importorskip("llguidance")

BEGIN = "<tool_call>"
SEVEN = {
    "type": "object",
    "properties": {"x": {"enum": [7]}},
    "required": ["x"],
    "additionalProperties": False,
}


def tool(name: str, schema: Any, strict: bool | None = True) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": schema, "strict": strict},
    }


def test_which_functions_have_a_schema_that_holds() -> None:
    tools = [tool("a", SEVEN), tool("b", SEVEN, None), tool("c", None), {"type": "function"}]
    tools.append(tool("d", {"enum": [{}, "x"]}))
    assert are_strict(tools)
    assert not are_strict(tools[1:2])
    found = strict_functions(tools)
    assert found["a"] == SEVEN
    assert found["b"] is None
    assert found["d"] == {"enum": [{}, "x"], "type": "object"}
    assert found["c"] == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.fixture(scope="module")
def marked(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for which the marks of calls and thoughts are tokens."""
    made = tmp_path_factory.mktemp("marked")
    shutil.copytree(checkpoint("llama"), made, dirs_exist_ok=True)
    text = (made / "tokenizer.json").read_text()
    for word, mark in ((" word0", BEGIN), (" word1", "<think>"), (" word2", "</think>")):
        text = text.replace(f'"{word}"', f'"{mark}"')
    (made / "tokenizer.json").write_text(text)
    return made


def written(words: Tokenizer, calls: FormedCalls | ThoughtsFirst, wishes: str) -> str:
    """What is written by a model that wants these tokens, one after another, and takes what it may
    where it may not have them."""
    left, tokens = list(words.encode(wishes, special=False)), list[int]()
    while left and len(tokens) < 400:
        bits = np.full(-(-tiny.VOCABULARY // 8), 0xFF, np.uint8)
        calls.mask(bits)
        allowed = np.unpackbits(bits, bitorder="little")
        tokens.append(left[0] if allowed[left[0]] else int(allowed.argmax()))
        if tokens[-1] == left[0]:
            del left[0]
        calls.accept(tokens[-1])
    assert not calls.problem()
    return words.decode(tokens, skip_special=False)


@pytest.fixture(scope="module")
def free(marked: Path) -> tuple[Tokenizer, FormedCalls]:
    """A constraint of Hermes' calls of two functions, of which one is strict."""
    words = Tokenizer.load(marked)
    functions = {"f": SEVEN, "g": None}
    grammars = Grammars("tiny", words, tiny.VOCABULARY)
    grammar = TOOL_FAMILIES["hermes"].grammar(functions, grammars.marks())
    assert grammar is not None
    form = grammars.constraint(AnswerForm(grammar=grammar.lark))
    decode = partial(words.decode, skip_special=False)
    return words, FormedCalls(form, grammar, decode, partial(words.encode, special=False))


CALL = '<tool_call>{"name": "f", "arguments": {"x": 7}}</tool_call>'
OTHER = '<tool_call>{"name": "g", "arguments": {"y": [1]}}</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        "Any text, with <tags> and {braces}.",
        '{"name": "Bob", "arguments": 3}',
        f"I call.\n{CALL}\n{OTHER} And {CALL}",
        f"{CALL * 3}",
        "A <tool_call",
        "A <tool_callx>",
        '{"name": "f", "arguments": {"x": 7}}',
        'Then {"name": "f", "arguments": {"x": 8}}',  # not where the answer begins: it is text
    ],
)
def test_text_and_calls_that_have_their_schema_are_free(
    free: tuple[Tokenizer, FormedCalls], text: str
) -> None:
    words, calls = free
    assert written(words, calls.copy(), text) == text


@pytest.mark.parametrize(
    ("wishes", "begins"),
    [
        ('<tool_call>{"name": "f", "arguments": {"x": 8', CALL[:-14]),
        ('Hm. <tool_call>{"name": "f", "arguments": {"z', f"Hm. {CALL[:-16]}"),
        (f'{OTHER}<tool_call>{{"name": "f", "arguments": {{"x": 8', f"{OTHER}{CALL[:-14]}"),
        ('{"name": "f", "arguments": {"x": 8', CALL[len(BEGIN) : -14]),
        ('<tool_call>{"name": "h', '<tool_call>{"name": "'),
    ],
)
def test_what_a_schema_does_not_have_is_not_written(
    free: tuple[Tokenizer, FormedCalls], wishes: str, begins: str
) -> None:
    words, calls = free
    made = written(words, calls.copy(), wishes)
    assert made.startswith(begins)
    assert '"name": "h' not in made
    assert '"x": 8' not in made
    assert '"z"' not in made


def test_thoughts_before_may_have_any_call_in_them(free: tuple[Tokenizer, FormedCalls]) -> None:
    words, calls = free
    marks = ThoughtMarks(words.encode("<think>", special=False)[0], "</think>")
    decode, encode = partial(words.decode, skip_special=False), partial(words.encode, special=False)
    first = ThoughtsFirst(calls.copy(), marks, decode, encode, words.end)
    thoughts = '<think>Is it <tool_call>{"name": "h"? </think>'
    wishes = f'{thoughts} So <tool_call>{{"name": "f", "arguments": {{"x": 8'
    assert written(words, first, wishes).startswith(f"{thoughts} So {CALL[:-14]}")


def asked(runtime: wherry.Runtime, tools: list[dict[str, Any]], **given: Any) -> list[str]:
    """The two answers' texts."""
    parameters = {"temperature": 0.0, "max_tokens": 200, "n": 2, **given}
    messages = [{"role": "user", "content": "Hi"}]
    said = runtime.stream("tiny", messages=messages, tools=tools, parameters=parameters)
    texts = ["", ""]
    for delta in said:
        texts[delta["index"]] += delta["text"]
    return texts


def called(text: str) -> list[tuple[str, str]]:
    reader = AnswerText(AnswerStyle("hermes", "think"), {"f": SEVEN})
    parts = [*reader.feed(text), *reader.end(cut=True)]
    calls = joined([call for part in parts for call in part.calls])
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("engine", ["wherry", "transformers"])
def test_a_model_s_calls_of_strict_tools_have_their_schema(marked: Path, engine: str) -> None:
    words = Tokenizer.load(marked)
    likely = {words.encode(BEGIN, special=False)[0]: 1000.0}
    # Its weights are random: it would go on with blanks.
    likely |= {words.encode(blank, special=False)[0]: -1000.0 for blank in " \n\t"}
    model = LLM(marked, name="tiny", engine=engine, cache_gb=0.01, threads=1)
    with wherry.Runtime(model) as runtime:
        for text in asked(runtime, [tool("f", SEVEN)], logit_bias=likely):
            assert len(made := called(text)) > 1
            assert {(name, "".join(given.split())) for name, given in made[:-1]} == {
                ("f", '{"x":7}')
            }
        for text in asked(runtime, [tool("f", SEVEN, False)], logit_bias=likely):
            assert text == BEGIN * 200
        with pytest.raises(InvalidRequest, match="tools: ") as refused:
            asked(runtime, [tool("f", {"properties": {"x": {"type": "strung"}}})])
        assert refused.value.field == "tools"
