"""How is an answer held to a JSON schema, a regular expression, a grammar or a list of choices?

llguidance (Rust) says before each token which may follow; what may not is never chosen, so an
answer that ends by itself is what was asked for. One that is cut off by `max_tokens` is its
beginning.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final

import msgspec
import numpy as np

from wherry.errors import InvalidRequest
from wherry.llm.tokenizer import Tokenizer

#: Any object: what "json_object" asks for.
OBJECT: Final[dict[str, Any]] = {"type": "object"}
#: Between the parts of JSON: one space or line break at most, as a small model never stops.
SPACES: Final = r"[ \n]?"


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    def constraint(self, wanted: Wanted) -> Matcher:
        """For one answer. InvalidRequest names what is wrong with the schema or grammar."""
        from llguidance import LLMatcher

        grammar = self._grammar(wanted)
        matcher = LLMatcher(self._known_words(), grammar, log_level=0)
        if problem := matcher.get_error():
            raise InvalidRequest(
                f"model {self._model!r}: constraint: {problem.strip().splitlines()[0]}"
            )
        return Matcher(matcher, self._vocabulary)

    def _grammar(self, wanted: Wanted) -> str:
        from llguidance import LLMatcher

        given = [n for n in Wanted.__struct_fields__ if getattr(wanted, n) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequest(
                f"model {self._model!r}: constraint: give exactly one of"
                f" {', '.join(Wanted.__struct_fields__)}"
            )
        grammar: str
        if wanted.json_schema is not None or wanted.json_object:
            schema = OBJECT if wanted.json_schema is None else wanted.json_schema
            try:
                grammar = LLMatcher.grammar_from_json_schema(
                    schema,
                    overrides={"whitespace_flexible": True, "whitespace_pattern": SPACES},
                )
            except (ValueError, TypeError) as error:
                raise InvalidRequest(f"model {self._model!r}: json_schema: {error}") from None
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
