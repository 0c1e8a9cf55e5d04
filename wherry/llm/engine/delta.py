"""What are the pieces of a generated answer, whatever engine produces them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from wherry.llm.engine.sequence import Sampled
from wherry.llm.engine.tokenizer import Tokenizer


@dataclass(slots=True)
class Delta:
    """The next piece of an answer. `delta["text"]` works too, as on the dict that a client gets.

    For example:

        whole = Delta.empty(0)
        for delta in runtime.stream("chat", prompt="Once"):
            whole.extend(Delta(**delta))
        print(whole.text, whole.finish_reason)
    """

    #: The index of the answer, below the request's `n`.
    index: int
    #: The text since the last piece; a character is never cut in two.
    text: str
    #: The tokens since the last piece, including those without text.
    token_ids: list[int]
    #: "" until the end; then "stop" (end of text or a stop condition) or "length".
    finish_reason: str
    #: With `logprobs`, {"token", "id", "logprob", "bytes", "top": [...]} for each token; with
    #: `echo` the prompt's come first, and the first token's logprob is None.
    logprobs: list[dict[str, Any]]
    #: At the end of the last answer: {"prompt_tokens", "completion_tokens", "cached_tokens"}, and
    #: "reasoning_tokens" of a reasoning model.
    usage: dict[str, int]
    #: In the first piece: "prompt_tokens", and if requested "prompt_token_ids" and
    #: "prompt_logprobs" (for each token None or {"ID": {"logprob", "rank", "decoded_token"}}). At
    #: an answer's end: "stop_reason", the text or token that stopped it.
    details: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, field: str) -> Any:
        if field not in self.__slots__:
            raise KeyError(field)
        return getattr(self, field)

    def keys(self) -> tuple[str, ...]:
        """Return the field names, so that `{**delta}` is a dict."""
        return tuple(self.__slots__)

    @classmethod
    def empty(cls, index: int) -> Delta:
        """Return an empty piece for `extend`."""
        return cls(index, "", [], "", [], {})

    def extend(self, further: Delta) -> None:
        """Append the next piece of the same answer. `usage` stays as it is."""
        self.text += further.text
        self.token_ids.extend(further.token_ids)  # it may be an array
        self.logprobs += further.logprobs
        self.finish_reason = further.finish_reason
        self.details |= further.details


class AnswerPieces:
    """The answers to one request, each returned whole if it is not streamed."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._whole: dict[int, Delta] = {}

    def add(self, delta: Delta) -> list[Delta]:
        if self._stream:
            return [delta]
        whole = self._whole.setdefault(delta.index, delta)
        if whole is not delta:
            whole.extend(delta)
        return [whole] if delta.finish_reason else []


#: Tokens whose text is remembered: making it takes 6 us, and a report may have 21 of a token.
PIECES: Final = 1 << 14


class Reports:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._piece = lru_cache(PIECES)(tokenizer.piece)

    def token(self, sampled: Sampled, most: int | None = None) -> dict[str, Any]:
        """A token and at most `most` alternatives, as an entry of `Delta.logprobs`."""
        top = [self._entry(token, logprob) for token, logprob in sampled.alternatives[:most]]
        return {**self._entry(sampled.token, sampled.logprob), "top": top}

    def first(self, token: int) -> dict[str, Any]:
        """The first token of a prompt in the same form: nothing predicts it."""
        return {**self._entry(token, None), "top": []}

    def count(self, tokens: Sequence[int], context: int, *, names: bool) -> Delta:
        usage = {"prompt_tokens": len(tokens), "context_tokens": context}
        details = {"token_strs": self._tokenizer.names(tokens)} if names else {}
        return Delta(0, "", list(tokens), "stop", [], usage, details)

    def ranked(self, sampled: Sampled, most: int) -> dict[str, Any]:
        """A token and its alternatives by their ids, as vLLM reports them."""
        found = [(sampled.token, sampled.logprob, sampled.rank)]
        top = sampled.alternatives[:most]
        found += [(token, logprob, 1 + place) for place, (token, logprob) in enumerate(top)]
        return {
            str(token): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self._piece(token)[0],
            }
            for token, logprob, rank in found
        }

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, raw = self._piece(token)
        return {"token": text, "id": token, "logprob": logprob, "bytes": list(raw)}
