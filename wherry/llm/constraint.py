"""How is an answer held to a JSON schema, a regular expression, a grammar or a list of choices?

llguidance (Rust) says before each token which may follow; what may not is never chosen, so an
answer that ends by itself is what was asked for. One that is cut off by `max_tokens` is its
beginning.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from wherry.llm.tokenizer import Tokenizer
from wherry.values.errors import InvalidRequest

#: Any object: what "json_object" asks for.
OBJECT: Final[dict[str, Any]] = {"type": "object"}
#: A larger grammar takes seconds to be read, and ten times as much for three times the size.
MOST_CHARACTERS: Final = 128 * 1024
#: Between the parts of JSON: one space or line break at most, as a small model never stops.
SPACES: Final = r"[ \n]?"


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer must look like: exactly one of these."""

    json_schema: dict[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    #: In llguidance's dialect of Lark.
    grammar: str | None = None
    choice: tuple[str, ...] | None = None


class Grammars:
    """Makes constraints for one checkpoint's vocabulary, which is read at the first use (1 s)."""

    def __init__(self, model: str, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._reading = threading.Lock()
        self._words: Any = None

    def constraint(self, wanted: AnswerForm) -> Matcher:
        """For one answer. InvalidRequest names what is wrong with the schema or grammar."""
        from llguidance import LLMatcher

        try:
            grammar = self._grammar(wanted)
        except (ValueError, TypeError, RecursionError) as error:  # nonsense, or nested too deep
            if isinstance(error, InvalidRequest):
                raise
            raise self._refused(str(error)) from None
        if len(grammar) > MOST_CHARACTERS:
            raise self._refused(
                f"it has {len(grammar)} characters; at most {MOST_CHARACTERS} are read"
            )
        matcher = LLMatcher(self._known_words(), grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first one takes longest, and may find a contradiction
        made = Matcher(matcher, self._vocabulary)
        if problem := made.problem():
            raise self._refused(problem)
        return made

    def _refused(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"model {self._model!r}: constraint: {problem}", field="constraint")

    def _grammar(self, wanted: AnswerForm) -> str:
        from llguidance import LLMatcher

        given = [n for n in AnswerForm.__struct_fields__ if getattr(wanted, n) not in (None, False)]
        if len(given) != 1:
            raise self._refused(f"give exactly one of {', '.join(AnswerForm.__struct_fields__)}")
        grammar: str
        if wanted.json_schema is not None or wanted.json_object:
            schema = OBJECT if wanted.json_schema is None else closed(wanted.json_schema)
            grammar = LLMatcher.grammar_from_json_schema(
                schema,
                overrides={"whitespace_flexible": True, "whitespace_pattern": SPACES},
            )
        elif wanted.grammar is not None:
            grammar = LLMatcher.grammar_from_lark(wanted.grammar)
        else:
            pattern = wanted.regex
            if pattern is None:
                pattern = "|".join(re.escape(text) for text in wanted.choice or ())
            grammar = LLMatcher.grammar_from_regex(f"({pattern})")
        return grammar

    def _known_words(self) -> Any:
        with self._reading:
            if self._words is None:
                from llguidance.hf import from_tokenizer

                self._words = from_tokenizer(
                    self._tokenizer.inner, self._vocabulary, self._tokenizer.end
                )
            return self._words


#: With one of these, several parts of a schema speak of one object; with one of the others, they
#: do if it has properties beside.
_JOINED: Final = {
    "$dynamicRef", "allOf", "dependentRequired", "dependentSchemas", "if", "not",
    "unevaluatedProperties",
}  # fmt: skip
_JOINED_BESIDE: Final = {"$ref", "anyOf", "oneOf"}
#: Where a schema has further ones: by name, in a list, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "contains", "additionalProperties")


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the members that it does not name, unless it says that there may be some.

    They are allowed by default, and a small model that may go on inventing them does. A schema
    that describes an object in several places is left as it is.
    """
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    parts = list(_parts(made))
    for part in parts:
        if _JOINED & part.keys() or ("properties" in part and _JOINED_BESIDE & part.keys()):
            return schema
    for part in parts:
        names, required = part.get("properties"), part.get("required", [])
        if isinstance(names, dict) and isinstance(required, list) and names.keys() >= {*required}:
            part.setdefault("additionalProperties", "patternProperties" in part)
    return made


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and those within it."""
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict):  # true, false, or nonsense: llguidance will tell
            continue
        yield part
        for key in _NAMED:
            left += part[key].values() if isinstance(part.get(key), dict) else ()
        for key in _LISTED:
            left += part[key] if isinstance(part.get(key), list) else ()
        left += [part.get(key) for key in _SINGLE]


class Matcher:
    """The constraint of one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self, logits: Any) -> None:
        """Set what must not follow to minus infinity, in place: one row of logits (a tensor)."""
        import torch

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(bool)
        forbidden = torch.from_numpy(~allowed).to(logits.device)
        logits[: self._vocabulary].masked_fill_(forbidden, float("-inf"))

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    def problem(self) -> str:
        """What is wrong with the grammar, or has become of it on the way: it grew too large, or
        nothing may follow. The answer is not what was asked for then."""
        if not self._matcher.is_error():
            return ""
        said: str = self._matcher.get_error().strip().splitlines()[0]
        return "no text fits it" if said == "NoExtensionBias" else said

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self._vocabulary)
