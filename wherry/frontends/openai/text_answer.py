"""How do a model's pieces become texts that go on where prompts end?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from wherry.frontends.openai.answers import AnswerParts, ChoiceDelta, Json, OpenAIAnswer

#: Bytes of a text that no token may stand for, as where a tokenizer has another form of a letter.
LOOK_AHEAD: Final = 12
#: What is told of a prompt with each of its answers, if that was asked for.
OF_PROMPTS: Final = ("prompt_token_ids", "prompt_logprobs")


class TextAnswer(OpenAIAnswer):
    """Texts that go on where the prompts end; `echoes`, if any, stand in front of theirs."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(
        self,
        model: str,
        request_id: str,
        echoes: Sequence[str],
        n: int,
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(model, request_id, shown)
        self._echoes = echoes
        self._n = n
        self._prompts: dict[int, Json] = {}

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self.usage.add(piece.usage)
        choice, text, prompt = self.choices.get(piece.index), piece.text, dict[str, Any]()
        if choice is None:
            choice = self.choices[piece.index] = {
                "index": piece.index,
                "text": "",
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "token_ids": [] if self.shown.token_ids else None,
            }
            prompt = self._prompt_of(piece)
            choice |= prompt
            if self._echoes:
                text = self._echoes[piece.index // self._n] + text
        logprobs = _text_logprobs(piece.logprobs, text, len(choice["text"]))
        choice["text"] += text
        if logprobs is not None:
            gathered = choice["logprobs"] = choice["logprobs"] or {name: [] for name in logprobs}
            for name, values in logprobs.items():
                gathered[name] += values
        choice["finish_reason"] = piece.finish_reason or None
        choice["stop_reason"] = piece.details.get("stop_reason")
        chunk = {name: choice[name] for name in ("index", "finish_reason", "stop_reason")}
        chunk |= {"text": text, "logprobs": logprobs}
        if self.shown.token_ids:
            choice["token_ids"] += piece.token_ids
            chunk |= {"token_ids": list(piece.token_ids)} | prompt
        return [chunk]

    def _prompt_of(self, piece: ChoiceDelta) -> Json:
        """What is told of the prompt, which comes with the first piece of its first answer."""
        prompt = piece.index // self._n
        if prompt not in self._prompts:
            self._prompts[prompt] = {name: piece.details.get(name) for name in OF_PROMPTS}
        return self._prompts[prompt]

    def end(self) -> list[Json]:
        chunks: list[Json] = []
        for choice in self.choices.values():
            if choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
                reason = {"finish_reason": "stop", "stop_reason": None}
                chunks.append({"index": choice["index"], "text": "", "logprobs": None, **reason})
        return chunks


def _text_logprobs(tokens: Sequence[Mapping[str, Any]], text: str, offset: int) -> Json | None:
    """`text` is what these tokens have become; there are `offset` characters before it."""
    if not tokens:
        return None
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [_alternatives(token) for token in tokens],
        "text_offset": [offset + place for place in _places(tokens, text.encode())],
    }


def _alternatives(token: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the log probabilities of a token and, behind it, of its alternatives, by text. Of two
    with the same text (parts of characters) the more probable counts. None for the first token of a
    prompt, which nothing predicts."""
    if token["logprob"] is None:
        return None
    found: dict[str, float] = {}
    for one in (token, *token["top"]):
        found[one["token"]] = max(one["logprob"], found.get(one["token"], one["logprob"]))
    return found


def _places(tokens: Sequence[Mapping[str, Any]], text: bytes) -> Iterator[int]:
    """At which character of the text each token begins."""
    end = characters = 0
    for token in tokens:
        counted = end
        raw = bytes(token.get("bytes") or token["token"].encode())
        begin, end = _place(raw, text, end)
        characters += sum(not _continues(byte) for byte in text[counted:begin])
        yield characters - any(map(_continues, text[begin : begin + 1]))
        characters += sum(not _continues(byte) for byte in text[begin:end])


def _place(token: bytes, text: bytes, start: int) -> tuple[int, int]:
    """Return begin and end of a token; an empty range if it is not there (special tokens)."""
    for form in (token, token.removeprefix(b" ")):  # which a vocabulary may have before a text
        if text.startswith(form, start):
            return start, start + len(form)
    found = text.find(token, start, start + len(token) + LOOK_AHEAD)
    return (start, start) if found < 0 else (found, found + len(token))


def _continues(byte: int) -> bool:
    """Whether this is a continuation byte of a UTF-8 character."""
    return byte & 0xC0 == 0x80
