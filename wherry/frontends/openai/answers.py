"""How do a model's responses become OpenAI's choices, whole or in chunks?"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.frontends.openai.tool_calls import ToolCall, ToolText, call_id
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.request import InferResponse

Json = dict[str, Any]

#: Bytes of a text that no token may stand for, as where a tokenizer has another form of a letter.
LOOK_AHEAD: Final = 12


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """A further part of one choice."""

    index: int
    text: str
    finish_reason: str = ""
    logprobs: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    token_ids: Sequence[int] = ()


def piece_of(loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
    """One response of an engine's model, or of a plain one whose only output is text."""
    row = {name: column[0] for name, column in response.outputs.items()}
    if "text" not in row:
        return ChoiceDelta(0, _text(row[loaded.signature.outputs[0].name]))
    return ChoiceDelta(
        int(row.get("index", 0)),
        _text(row["text"]),
        _text(row.get("finish_reason", "")),
        row.get("logprobs") or (),
        row.get("usage") or {},
        row.get("token_ids", ()),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


@dataclass(slots=True)
class Usage:
    """The tokens of a request, over all its prompts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, usage: Mapping[str, int]) -> None:
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.cached_tokens += usage.get("cached_tokens", 0)

    def json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class OpenAIAnswer(ABC):
    """The answer to one request: gathers pieces, and says what of them is to be sent."""

    #: What the objects are called, whole and in chunks, and how their ids begin.
    kind: str
    chunk_kind: str
    prefix: str
    #: What ends a stream of them.
    last: bytes | None = b"[DONE]"

    def __init__(self, model: str, request_id: str) -> None:
        self.model = model
        self.id = f"{self.prefix}-{request_id}"
        self.created = int(time.time())
        self.usage = Usage()
        self.choices: dict[int, Json] = {}

    @abstractmethod
    def add(self, piece: ChoiceDelta) -> list[Json]:
        """Take a piece in; return the choices of the chunks that it makes."""

    @abstractmethod
    def end(self) -> list[Json]:
        """End the answer; return the choices of its last chunks."""

    def whole(self) -> Json:
        """The answer in one object."""
        choices = [self.choices[index] for index in sorted(self.choices)]
        return {**self._head(self.kind), "choices": choices, "usage": self.usage.json()}

    def chunk(self, choice: Json, *, with_usage: bool) -> Json:
        """One event; where usage is asked for, all but the last say that they have none."""
        usage = {"usage": None} if with_usage else {}
        return {**self._head(self.chunk_kind), "choices": [choice], **usage}

    def failure(self, error: Json) -> Json:
        """The event of an error that ends a stream."""
        return error

    def usage_chunk(self) -> Json:
        return {**self._head(self.chunk_kind), "choices": [], "usage": self.usage.json()}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChatAnswer(OpenAIAnswer):
    """Messages of the assistant; with `tools`, calls of them are taken out of the text.

    `most_calls`: what goes beyond is left out, for callers that can do with one only.
    """

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self,
        model: str,
        request_id: str,
        tools: Collection[str] = (),
        most_calls: int | None = None,
    ) -> None:
        super().__init__(model, request_id)
        self._tools = tools
        self._most_calls = most_calls
        self._texts: dict[int, ToolText] = {}

    def add(self, piece: ChoiceDelta) -> list[Json]:
        chunks: list[Json] = []
        choice = self.choices.get(piece.index)
        if choice is None:
            choice = self.choices[piece.index] = {
                "index": piece.index,
                "message": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            if self._tools:
                self._texts[piece.index] = ToolText(self._tools)
            chunks.append(_delta(piece.index, {"role": "assistant", "content": ""}))
        self.usage.add(piece.usage)
        logprobs = _chat_logprobs(piece.logprobs)
        if logprobs is not None:
            gathered = choice["logprobs"] or {"content": [], "refusal": None}
            gathered["content"] += logprobs["content"]
            choice["logprobs"] = gathered
        text, calls = piece.text, list[ToolCall]()
        if splitter := self._texts.get(piece.index):
            text, calls = splitter.feed(text)
            if piece.finish_reason:
                rest, more = splitter.end()
                text, calls = text + rest, calls + more
        message = choice["message"]
        if text or logprobs is not None:
            message["content"] += text
            chunks.append(_delta(piece.index, {"content": text}, logprobs))
        for call in calls:
            made = message.setdefault("tool_calls", [])
            number = len(made)
            if number == self._most_calls:
                break
            made.append(
                {
                    "id": call_id(f"{self.id}{piece.index}", number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
            )
            chunks.append(_delta(piece.index, {"tool_calls": [{"index": number, **made[-1]}]}))
        if piece.finish_reason:
            chunks.append(self._finished(choice, piece.finish_reason))
        return chunks

    def end(self) -> list[Json]:
        """A plain model says nothing at its end: it has stopped."""
        left = [choice for choice in self.choices.values() if choice["finish_reason"] is None]
        chunks: list[Json] = []
        for choice in left:
            chunks += self.add(ChoiceDelta(choice["index"], "", "stop"))
        return chunks

    def _finished(self, choice: Json, reason: str) -> Json:
        message = choice["message"]
        if "tool_calls" in message:
            message["content"] = message["content"] or None
            reason = "tool_calls" if reason == "stop" else reason
        choice["finish_reason"] = reason
        return {**_delta(choice["index"], {}), "finish_reason": reason}


class TextAnswer(OpenAIAnswer):
    """Texts that go on where the prompts end; `echoes`, if any, stand in front of theirs."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, model: str, request_id: str, echoes: Sequence[str], n: int) -> None:
        super().__init__(model, request_id)
        self._echoes = echoes
        self._n = n

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self.usage.add(piece.usage)
        choice, text = self.choices.get(piece.index), piece.text
        if choice is None:
            choice = self.choices[piece.index] = {
                "index": piece.index,
                "text": "",
                "logprobs": None,
                "finish_reason": None,
            }
            if self._echoes:
                text = self._echoes[piece.index // self._n] + text
        logprobs = _text_logprobs(piece.logprobs, text, len(choice["text"]))
        choice["text"] += text
        if logprobs is not None:
            gathered = choice["logprobs"] = choice["logprobs"] or {name: [] for name in logprobs}
            for name, values in logprobs.items():
                gathered[name] += values
        choice["finish_reason"] = piece.finish_reason or None
        return [{**choice, "text": text, "logprobs": logprobs}]

    def end(self) -> list[Json]:
        chunks: list[Json] = []
        for choice in self.choices.values():
            if choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
                chunks.append({**choice, "text": "", "logprobs": None})
        return chunks


class TokensAnswer(OpenAIAnswer):
    """The tokens of a prompt, in vLLM's form."""

    kind = chunk_kind = prefix = "tokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        tokens = [int(token) for token in piece.token_ids]
        self._whole = {
            "count": len(tokens),
            "max_model_len": piece.usage.get("context_tokens"),
            "tokens": tokens,
            "token_strs": None,
        }
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> Json:
        return self._whole


class PromptAnswer(OpenAIAnswer):
    """The text of tokens, in vLLM's form."""

    kind = chunk_kind = prefix = "detokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self._text = piece.text
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> Json:
        return {"prompt": self._text}


def _delta(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _chat_logprobs(tokens: Sequence[Mapping[str, Any]]) -> Json | None:
    if not tokens:
        return None

    def said(token: Mapping[str, Any]) -> Json:
        return {name: token[name] for name in ("token", "logprob", "bytes")}

    content = [{**said(t), "top_logprobs": [said(top) for top in t["top"]]} for t in tokens]
    return {"content": content, "refusal": None}


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
    """Return the log probabilities of a token and its alternatives, by text. Of two with the same
    text (parts of characters) the more probable counts. None for the first token of a prompt, which
    nothing predicts."""
    if token["logprob"] is None:
        return None
    found: dict[str, float] = {}
    for one in (*token["top"], token):
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
