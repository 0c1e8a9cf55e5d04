"""llm/formats/call_writer.py: what a grammar accepts is read, and has the schema's form."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.unit.llm.formats.test_families import EXAMPLES, joined, style_of
from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.calls import ToolCall
from wherry.llm.formats.families import TOOL_FAMILIES

pytest.importorskip("torch")
llguidance = pytest.importorskip("llguidance")

STRICT: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "get_time": None,
}
MANY: dict[str, Any] = {
    "make": {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "text": {"type": "string"},
            "chosen": {"enum": ["a b", "5"]},
            "maybe": {"type": ["string", "null"]},
            "flag": {"type": "boolean"},
            "inner": {
                "type": "object",
                "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Number"}}},
                "required": ["list"],
                "additionalProperties": False,
            },
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "fixed": {"const": "7"},
        },
        "required": ["text", "count", "inner"],
        "additionalProperties": False,
        "$defs": {"Number": {"type": "number"}},
    },
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    "anything": None,
}
#: Examples whose calls are written otherwise than their family's chat template does, and those
#: whose notation has no grammar.
OTHERWISE = {
    "deepseek_v32:closed", "minimax_m2:closed", "dots", "deepseek_v4",
    "dots: json", "deepseek_v32: json", "qwen3_coder: without its mark",
}  # fmt: skip
WITHOUT_GRAMMAR = {
    "lfm2", "olmo3", "pythonic", "llama4", "functiongemma", "gemma4",
    "muse", "inkling", "kimi_k3", "k2_horizon", "apertus",
}  # fmt: skip


@cache
def vocabulary(marks: tuple[str, ...] = ()) -> tuple[Any, Any, dict[str, int]]:
    """A tokenizer whose tokens are bytes and these: as transformers has it, as llguidance does,
    and those of them that are not text for it."""
    from llguidance.hf import from_tokenizer

    from tests.unit.llm.engine import tiny

    inner = tiny.tokenizer()
    if marks:
        inner.add_special_tokens({"additional_special_tokens": [*marks]})
    words = from_tokenizer(inner, len(inner), tiny.END)
    added = {token.content: number for number, token in inner.added_tokens_decoder.items()}
    return inner, words, {t: n for t, n in added.items() if words.is_special_token(n)}


def compiled(words: Any, lark: str) -> Any:
    made = llguidance.LLMatcher(words, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    "example",
    sorted(
        one for one in EXAMPLES.keys() - OTHERWISE if style_of(one).tools not in WITHOUT_GRAMMAR
    ),
)
def test_a_family_s_own_calls_have_the_grammar_and_others_have_not(
    example: str, marked: bool
) -> None:
    text, calls = EXAMPLES[example]
    family = TOOL_FAMILIES[style_of(example).tools]
    inner, words, special = vocabulary(family.marks if marked else ())
    grammar = family.grammar(STRICT, special)
    assert grammar is not None
    runs = list(accepted(text, grammar, inner, compiled(words, grammar.lark)))
    assert all(whole for _, whole in runs)
    assert "".join(run for run, _ in runs).count("get_") >= len(calls)
    wrong = text.replace("3", "three")
    runs = list(accepted(wrong, grammar, inner, compiled(words, grammar.lark)))
    assert not runs[0][1]
    assert "days" in runs[0][0]


def accepted(text: str, grammar: Any, inner: Any, matcher: Any) -> Iterator[tuple[str, bool]]:
    """The runs of calls in a text: what of each the grammar accepts, and whether that is whole."""
    at = 0
    while found := grammar.anywhere.search(text, at) or (
        None if at else grammar.first.search(text, len(text) - len(text.lstrip()))
    ):
        tokens = inner.encode(text[found.start() :], add_special_tokens=False)
        calls = matcher.deep_copy()
        taken = calls.try_consume_tokens(tokens)
        run = inner.decode(tokens[:taken])
        yield run, calls.is_stopped() or (taken == len(tokens) and calls.is_accepting())
        at = found.start() + max(len(run), 1)


def test_each_family_has_a_grammar_but_those_that_are_named() -> None:
    without = {name for name, one in TOOL_FAMILIES.items() if one.grammar(STRICT, {}) is None}
    assert without == WITHOUT_GRAMMAR


@pytest.fixture(scope="module")
def words() -> Any:
    return vocabulary()[1]


@pytest.fixture(scope="module")
def choices(words: Any) -> Choices:
    return Choices(words)


@pytest.mark.parametrize("family", sorted(TOOL_FAMILIES.keys() - WITHOUT_GRAMMAR))
def test_whatever_has_the_grammar_is_read_as_calls_that_have_the_schema(
    family: str, words: Any, choices: Choices
) -> None:
    grammar = TOOL_FAMILIES[family].grammar(MANY, {})
    assert grammar is not None
    start = compiled(words, grammar.lark)
    for seed in range(6):
        text = written(start.deep_copy(), words, choices, random.Random(f"{family}{seed}"))
        if text is None or not (grammar.anywhere.search(text) or grammar.first.match(text)):
            continue
        said, calls = read(family, text)
        assert calls, text
        assert not said.strip(), text
        for call in calls:
            assert fits(json.loads(call.arguments), MANY[call.name] or {}), text


class Choices:
    """Of the tokens that a mask allows: all, those that close something, and those one sees."""

    def __init__(self, words: Any) -> None:
        begins = [words.decode_bytes([token])[:1] for token in range(300)]
        self.closing = {token for token, first in enumerate(begins) if first in b"<\"}])/'>"}
        self.printed = {token for token, first in enumerate(begins) if b" " <= first < b"\x7f"}
        self.known: dict[bytes, tuple[list[int], list[int], list[int]]] = {}

    def of(self, mask: bytes) -> tuple[list[int], list[int], list[int]]:
        if mask not in self.known:  # a grammar has few
            free = [token for token in range(300) if mask[token >> 3] >> (token & 7) & 1]
            closing = [token for token in free if token in self.closing]
            printed = [token for token in free if token in self.printed]
            self.known[mask] = free, closing, printed
        return self.known[mask]


def written(matcher: Any, words: Any, choices: Choices, chance: random.Random) -> str | None:
    """A text that the grammar accepts; None: it has become too long."""
    tokens: list[int] = []
    while not matcher.is_stopped() and len(tokens) < 1500:
        free, closing, printed = choices.of(matcher.compute_bitmask())
        if 256 in free and (len(free) == 1 or chance.random() < 0.5):
            break
        some = closing if closing and chance.random() < 0.6 else printed or free
        tokens.append(chance.choice([t for t in some if t != 256] or free))
        matcher.consume_token(tokens[-1])
    if not (matcher.is_stopped() or matcher.is_accepting()):
        return None
    return str(words.decode_bytes(tokens).decode(errors="replace"))


def read(family: str, text: str) -> tuple[str, list[ToolCall]]:
    reader = AnswerText(AnswerStyle(family), {name: one or {} for name, one in MANY.items()})
    parts = [*reader.feed(text), *reader.end()]
    calls = joined([call for part in parts for call in part.calls])
    return "".join(part.text for part in parts), calls


KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value has a schema of those here."""
    if "$ref" in schema:
        return isinstance(value, int | float)
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if schema.get("type") == "object":
        known = schema["properties"]
        has = {*schema.get("required", ())} <= value.keys() <= known.keys()
        return has and all(fits(one, known[key]) for key, one in value.items())
    if schema.get("type") == "array":
        return isinstance(value, list) and all(fits(one, schema["items"]) for one in value)
    types = schema.get("type", [])
    wanted = [types] if isinstance(types, str) else types
    return not wanted or any(isinstance(value, KINDS[one]) for one in wanted)


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/X"}, {"anyOf": [{"type": "object"}]}])
def test_arguments_that_a_notation_writes_one_by_one_must_be_named(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="make: strict parameters must be an object with propert"):
        TOOL_FAMILIES["qwen3_coder"].grammar({"make": schema}, {})


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("phi4_mini", "I use functools.partial"),
        ("xlam", '```json\n{"name": "Bob"}\n```'),
        ("hermes", '{"name": "Bob", "age": 3}'),
        ("llama3", 'It is {"name": "get_time"}'),
        ("harmony", "You write to=functions.get_time there"),
    ],
)
def test_words_and_markdown_that_calls_may_begin_with_do_not_force_one(
    family: str, text: str
) -> None:
    grammar = TOOL_FAMILIES[family].grammar(STRICT, {})
    assert grammar is not None
    assert not grammar.anywhere.search(text)
    assert not grammar.first.match(text)


@pytest.mark.parametrize("family", sorted(TOOL_FAMILIES.keys() - WITHOUT_GRAMMAR))
def test_a_name_is_no_pattern_and_ends_no_text(family: str, words: Any) -> None:
    functions = {"a\"b.c(d|'\\": STRICT["get_weather"]}
    grammar = TOOL_FAMILIES[family].grammar(functions, {})
    assert grammar is not None
    compiled(words, grammar.lark)
    assert not grammar.anywhere.search('a {"name": "a", [a"bxc(')
