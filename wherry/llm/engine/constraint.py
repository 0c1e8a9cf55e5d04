"""How is an answer constrained to a JSON schema, a regular expression, a grammar or choices?

llguidance (Rust) computes before each token which tokens may follow; the others are masked. An
answer that ends by itself has the requested form; one that is cut off by `max_tokens` is a prefix
of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.core.api import InvalidRequest
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.call_writer import CallGrammar, Strict

#: The schema of "json_object": any object.
OBJECT: Final[dict[str, Any]] = {"type": "object"}
#: Larger grammars take seconds to compile, growing faster than linearly.
MOST_CHARACTERS: Final = 128 * 1024
#: White space allowed in JSON: at most one character, as small models may repeat it without end.
SPACES: Final = r"[ \n]?"


TokenBits = npt.NDArray[np.uint8]


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of an answer: exactly one field is set."""

    json_schema: dict[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    #: Lark syntax as llguidance reads it.
    grammar: str | None = None
    choice: tuple[str, ...] | None = None


class Grammars:
    """Compiles constraints for one tokenizer. The first use reads the vocabulary (1 s)."""

    def __init__(self, model: str, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._reading = threading.Lock()
        self._words: Any = None
        #: The grammar that was compiled last, which all prompts of one request share.
        self._last: tuple[str, Matcher] | None = None

    def constraint(self, answer_form: AnswerForm, field: str = "constraint") -> Matcher:
        """Compile the constraint of one answer. InvalidRequest if the schema or grammar, from the
        request's `field`, is invalid. May take seconds."""
        from llguidance import LLMatcher

        try:
            grammar = self._grammar(answer_form)
        except (ValueError, TypeError, RecursionError) as error:  # invalid, or nested too deeply
            if isinstance(error, InvalidRequest):
                raise
            raise self._refused(str(error), field) from None
        if len(grammar) > MOST_CHARACTERS:
            raise self._refused(
                f"it has {len(grammar)} characters; at most {MOST_CHARACTERS} are read", field
            )
        if self._last is not None and self._last[0] == grammar:
            return self._last[1].copy()
        matcher = LLMatcher(self._known_words(), grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask takes longest, and shows contradictions
        made = Matcher(matcher)
        if problem := made.problem():
            raise self._refused(problem, field)
        self._last = grammar, made
        return made.copy()

    def marks(self) -> dict[str, int]:
        """The tokens that a grammar names by their ids, as they are not text in it: special tokens,
        and other added ones in angle brackets."""
        words = self._known_words()
        added = self._tokenizer.added_tokens().items()
        return {text: token for text, token in added if words.is_special_token(token)}

    def _refused(self, problem: str, field: str = "constraint") -> InvalidRequest:
        return InvalidRequest(f"model {self._model!r}: {field}: {problem}", field=field)

    def _grammar(self, answer_form: AnswerForm) -> str:
        from llguidance import LLMatcher

        chosen = [
            n for n in AnswerForm.__struct_fields__ if getattr(answer_form, n) not in (None, False)
        ]
        if len(chosen) != 1:
            raise self._refused(f"give exactly one of {', '.join(AnswerForm.__struct_fields__)}")
        grammar: str
        if answer_form.json_schema is not None or answer_form.json_object:
            schema = OBJECT if answer_form.json_schema is None else closed(answer_form.json_schema)
            grammar = LLMatcher.grammar_from_json_schema(
                schema,
                overrides={"whitespace_flexible": True, "whitespace_pattern": SPACES},
            )
        elif answer_form.grammar is not None:
            grammar = LLMatcher.grammar_from_lark(answer_form.grammar)
        else:
            pattern = answer_form.regex
            if pattern is None:
                pattern = "|".join(re.escape(text) for text in answer_form.choice or ())
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
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, allowed: TokenBits) -> None:
        follows = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: len(allowed)]
        allowed[: len(follows)] &= follows

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    def accepts(self, tokens: Sequence[int]) -> bool:
        return bool(self._matcher.try_consume_tokens(list(tokens)) == len(tokens))

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_stopped())

    def problem(self) -> str:
        """Why the grammar has failed (too large, or no token may follow); "" if it has not. The
        answer then does not have the requested form."""
        if not self._matcher.is_error():
            return ""
        first, *lines = self._matcher.get_error().strip().splitlines()
        if first == "NoExtensionBias":
            return "no text fits it"
        # For a regular expression the first line is only that it is invalid.
        return "".join([first, *(line[6:] for line in lines if line.startswith("error:"))])

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy())


#: Tokens that may hold the beginning of a call.
LAST_TOKENS: Final = 48
#: The schema of a function without parameters.
_NOTHING: Final[dict[str, Any]] = {**OBJECT, "properties": {}, "additionalProperties": False}


def are_strict(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the arguments of one of these tools must follow its schema."""
    return any(_function(tool).get("strict") is True for tool in tools)


def strict_functions(tools: Sequence[Mapping[str, Any]]) -> Strict:
    """The schemas of the functions, by name; None for those that are not strict."""
    functions = [_function(tool) for tool in tools]
    return {
        str(one["name"]): closed(
            loosened({**(one.get("parameters") or _NOTHING), "type": "object"})[0]
        )
        if one.get("strict") is True
        else None
        for one in functions
        if one.get("name")
    }


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


class FormedCalls:
    """A constraint of the calls in an answer. `form` is the compiled `grammar`. After the mark
    `thought_end` the answer begins again: thoughts may end without the mark, so calls within them
    follow the grammar, too."""

    def __init__(
        self,
        form: Matcher,
        grammar: CallGrammar,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[str], Sequence[int]],
        thought_end: str = "",
    ) -> None:
        self._form = form
        self._grammar = grammar
        self._decode, self._encode = decode, encode
        self._thought_end = thought_end
        #: The constraint of calls, once they have begun.
        self._calls: Matcher | None = None
        #: The text's last tokens, and whether these are all tokens of the answer.
        self._tokens: list[int] = []
        self._whole = True

    def mask(self, allowed: TokenBits) -> None:
        if self._calls is not None:
            self._calls.mask(allowed)

    def accept(self, token: int) -> None:
        if self._calls is not None:
            self._calls.accept(token)
            if self._calls.ended:
                self._calls = None
            return
        self._whole = self._whole and len(self._tokens) < LAST_TOKENS
        self._tokens = [*self._tokens[1 - LAST_TOKENS :], token]
        text = self._decode(self._tokens)
        begun = self._grammar.anywhere.search(text)
        if begun is not None:
            self._begin(text[begun.start() :])
            return
        _, ended, behind = text.rpartition(self._thought_end or "\0")
        if self._whole or ended:
            answer = behind.lstrip()
            if self._grammar.first.match(answer):
                self._begin(answer)

    def problem(self) -> str:
        return "" if self._calls is None else self._calls.problem()

    def copy(self) -> FormedCalls:
        encoding = self._decode, self._encode
        return FormedCalls(self._form, self._grammar, *encoding, self._thought_end)

    def _begin(self, text: str) -> None:
        """Begin calls with this text, unless it cannot be their beginning: it stays free then."""
        self._tokens, self._whole = [], False
        calls = self._form.copy()
        if calls.accepts(self._encode(text)):
            self._calls = None if calls.ended else calls


Schema = dict[str, Any]
#: Keywords whose values are subschemas: by name, in a list, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "contains", "additionalProperties")
#: With one of these keywords an object's members depend on more than one schema.
_DEPENDENT: Final = {
    "$dynamicRef", "dependentRequired", "dependentSchemas", "if", "not", "unevaluatedProperties",
}  # fmt: skip

#: Keywords for which llguidance has no grammar.
_NOT_FOLLOWED: Final = frozenset(
    (
        "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "contains", "dependencies",
        "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    )
)  # fmt: skip
_FORMATS: Final = frozenset(
    (
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown",
        "uri", "uuid",
    )
)  # fmt: skip
#: Of regular expressions: to look ahead or behind, and to repeat what was found.
_BEYOND_REGULAR: Final = re.compile(r"\(\?<?[=!]|(?<!\\)(?:\\\\)*\\[1-9k]")


def closed(schema: Schema) -> Schema:
    """The schema with `additionalProperties: false` where it does not mention them: small models
    invent members without end.

    A resource in which several subschemas describe one object is left open: one may name members
    that another does not.
    """
    made = _copy(schema)
    parts = [(part, id(root)) for part, root, _ in _parts(made)]
    left_open = {root for part, root in parts if _voices(part) > 1}
    for part, root in parts:
        names, required = part.get("properties"), part.get("required", [])
        if (
            root not in left_open
            and isinstance(names, dict)
            and isinstance(required, list)
            and names.keys() >= {*required}
        ):
            part.setdefault("additionalProperties", "patternProperties" in part)
    return made


def loosened(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema without what no grammar can follow, and the places of what was removed.

    `oneOf` becomes `anyOf`, which is not reported: most alternatives exclude each other.
    """
    made = _copy(schema)
    left_out: list[str] = []
    for part, _, place in list(_parts(made)):
        dropped = [key for key in part if not _can_follow(part, key)]
        left_out += [f"{place}{key}" for key in dropped if part.pop(key) is not False]
        if "oneOf" in part and "anyOf" not in part:
            part["anyOf"] = part.pop("oneOf")
    return made, left_out


def _can_follow(part: Schema, key: str) -> bool:
    value = part[key]
    if key == "format":
        return value in _FORMATS if isinstance(value, str) and _may_be_text(part) else True
    if key == "pattern":
        return not isinstance(value, str) or _BEYOND_REGULAR.search(value) is None
    return key not in _NOT_FOLLOWED


def _may_be_text(part: Schema) -> bool:
    types = part.get("type", "string")
    return "string" in (types if isinstance(types, list) else [types])


def _copy(schema: Schema) -> Schema:
    made: Schema = msgspec.json.decode(msgspec.json.encode(schema))
    return made


def _parts(schema: Schema) -> Iterator[tuple[Schema, Schema, str]]:
    """A schema and its subschemas, each with the root of its references and its place; without
    those that are conditions."""
    left: list[tuple[Any, Schema, str]] = [(schema, schema, "")]
    while left:
        part, root, place = left.pop()
        if not isinstance(part, dict):  # true, false, or invalid, which llguidance reports
            continue
        root = part if "$id" in part else root
        yield part, root, place
        for key in _NAMED:
            if isinstance(subs := part.get(key), dict):
                left += [(sub, root, f"{place}{key}.{name}.") for name, sub in subs.items()]
        for key in _LISTED:
            if isinstance(subs := part.get(key), list):
                left += [(sub, root, f"{place}{key}[{i}].") for i, sub in enumerate(subs)]
        left += [(part.get(key), root, f"{place}{key}.") for key in _SINGLE]


def _voices(part: Schema) -> int:
    """How many subschemas describe the members of one object."""
    if part.keys() & _DEPENDENT:
        return 2
    every = part.get("allOf")
    alone = sum(key in part for key in ("properties", "$ref", "anyOf", "oneOf"))
    return alone + (len(every) if isinstance(every, list) else 0)
