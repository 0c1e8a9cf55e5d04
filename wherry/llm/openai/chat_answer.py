"""How do a model's pieces become the messages of a chat, with calls of tools?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.calls import MessagePart, ToolCall
from wherry.llm.formats.families import FORCED
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.generation import AnswerParts, ChoiceDelta, Json, OpenAIAnswer, TokenUsage
from wherry.server.api import new_request_id

#: Of a message without thoughts: clients of vLLM look at the second in each message.
_NO_THOUGHTS: Final = {"reasoning_content": None, "reasoning": None}


class ChatMessage(msgspec.Struct, kw_only=True):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[Json] = []


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    logprobs: Json | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """How a conversation goes on."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage


class ChatChunk(msgspec.Struct, kw_only=True):
    """A part of it, in an event; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[Json]
    usage: TokenUsage | None = None


class ChatAnswer(OpenAIAnswer):
    """Messages of the assistant; thoughts and calls are taken out of the text.

    How a model writes these it says with its first piece (`details["style"]`, an `AnswerStyle`).
    `echo` stands in front of each text.
    """

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self,
        model: str,
        request_id: str,
        calls: AllowedCalls = AllowedCalls(),  # noqa: B008 - frozen
        *,
        echo: str = "",
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(model, request_id, shown)
        self._echo = echo
        #: Of the prompt: its tokens, and their log probabilities.
        self._prompt: Json = {"prompt_token_ids": None, "prompt_logprobs": None}
        self._calls = calls
        #: Of what its calls are named: clients may send one X-Request-Id several times.
        self._named = new_request_id()
        self._style = AnswerStyle()
        self._texts: dict[int, AnswerText] = {}
        #: How many calls each choice has made.
        self._made: dict[int, int] = {}

    def add(self, piece: ChoiceDelta) -> list[Json]:
        chunks: list[Json] = []
        choice = self.choices.get(piece.index)
        if choice is None:
            choice = self.choices[piece.index] = self._begun(piece)
            chunks.append(_delta(piece.index, {"role": "assistant", "content": ""}))
            if self._echo:
                chunks.append(_delta(piece.index, {"content": self._echo}))
        self.usage.add(piece.usage)
        self._prompt |= {n: piece.details[n] for n in self._prompt if n in piece.details}
        logprobs = _chat_logprobs(piece.logprobs)
        if logprobs is not None:
            gathered = choice["logprobs"] or {"content": [], "refusal": None}
            gathered["content"] += logprobs["content"]
            choice["logprobs"] = gathered
        for message_part in self._message_parts(piece):
            chunks += self._text(choice, message_part)
            chunks += self._called(choice, message_part.calls)
        if logprobs is not None:  # with the first text of the piece
            if not any("role" not in chunk["delta"] for chunk in chunks):
                chunks.append(_delta(piece.index, {"content": ""}))
            first = next(chunk for chunk in chunks if "role" not in chunk["delta"])
            first["logprobs"] = logprobs
        if piece.finish_reason:
            self._finish(choice, piece, chunks)
        if self.shown.token_ids and piece.token_ids:
            choice["token_ids"] += piece.token_ids
            chunks = chunks or [_delta(piece.index, {})]
            chunks[-1]["token_ids"] = list(piece.token_ids)
        return chunks

    def _begun(self, piece: ChoiceDelta) -> Json:
        if style := piece.details.get("style"):
            self._style = AnswerStyle(**style)
        style = replace(self._style, tools=FORCED) if self._calls.forced else self._style
        if self._calls.functions or not style.plain:
            self._texts[piece.index] = AnswerText(style, self._calls.functions)
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": self._echo, **_NO_THOUGHTS},
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "token_ids": [] if self.shown.token_ids else None,
        }

    def _message_parts(self, piece: ChoiceDelta) -> list[MessagePart]:
        """What the piece has of thoughts, text and calls."""
        text = self._texts.get(piece.index)
        if text is None:
            return [MessagePart(text=piece.text)]
        message_part = text.feed(piece.text)
        if piece.finish_reason:
            message_part += text.end(cut=piece.finish_reason == "length")
        return message_part

    def _text(self, choice: Json, message_part: MessagePart) -> list[Json]:
        """Add what is thought, and what is answered, to the message."""
        message, chunks = choice["message"], list[Json]()
        if message_part.thoughts and self.shown.thoughts:
            both = {"reasoning_content": message_part.thoughts, "reasoning": message_part.thoughts}
            for name, thoughts in both.items():
                message[name] = (message[name] or "") + thoughts
            chunks.append(_delta(choice["index"], both))
        if message_part.text:
            message["content"] += message_part.text
            chunks.append(_delta(choice["index"], {"content": message_part.text}))
        return chunks

    def _called(self, choice: Json, calls: Sequence[ToolCall]) -> list[Json]:
        """Add calls to the message, as far as there may be more of them: a name first, then pieces
        of the arguments."""
        index, chunks = choice["index"], list[Json]()
        for call in calls:
            if call.name:
                self._made[index] = self._made.get(index, 0) + 1
            number = self._made[index] - 1
            if self._calls.most is not None and number >= self._calls.most:
                continue
            made = choice["message"].setdefault("tool_calls", [])
            if call.name:
                made.append(
                    {
                        "id": call.id
                        or call_id(f"{self._named}/{index}", number, self._style.tools),
                        "type": "function",
                        "function": {"name": call.name, "arguments": ""},
                    }
                )
                begun = {**made[-1], "function": {**made[-1]["function"]}}
                chunks.append(_delta(index, {"tool_calls": [{"index": number, **begun}]}))
            if call.arguments:
                made[-1]["function"]["arguments"] += call.arguments
                piece = {"index": number, "function": {"arguments": call.arguments}}
                chunks.append(_delta(index, {"tool_calls": [piece]}))
        return chunks

    def end(self) -> list[Json]:
        """A plain model says nothing at its end: it has stopped."""
        left = [choice for choice in self.choices.values() if choice["finish_reason"] is None]
        chunks: list[Json] = []
        for choice in left:
            chunks += self.add(ChoiceDelta(choice["index"], "", "stop"))
        return chunks

    def whole(self) -> Json:
        return {**self._whole(), **self._prompt}

    def chunk(self, choice: Json) -> Json:
        made = super().chunk(choice)
        if "role" in choice["delta"] and (tokens := self._prompt["prompt_token_ids"]) is not None:
            made["prompt_token_ids"] = tokens
        return made

    def _finish(self, choice: Json, piece: ChoiceDelta, chunks: list[Json]) -> None:
        """Note the end, and say it with the last text, or in a chunk of its own."""
        message, reason = choice["message"], piece.finish_reason
        if "tool_calls" in message or message["reasoning"]:
            message["content"] = message["content"] or None
        if "tool_calls" in message:
            reason = "tool_calls" if reason == "stop" else reason
        choice["finish_reason"] = reason
        if not chunks or chunks[-1]["delta"].keys() != {"content"}:
            chunks.append(_delta(choice["index"], {}))
        chunks[-1]["finish_reason"] = reason
        if "stop_reason" in piece.details:
            choice["stop_reason"] = chunks[-1]["stop_reason"] = piece.details["stop_reason"]


def _delta(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _chat_logprobs(tokens: Sequence[Mapping[str, Any]]) -> Json | None:
    if not tokens:
        return None

    def logprob_of(token: Mapping[str, Any]) -> Json:
        return {name: token[name] for name in ("token", "logprob", "bytes")}

    content = [
        {**logprob_of(t), "top_logprobs": [logprob_of(top) for top in t["top"]]} for t in tokens
    ]
    return {"content": content, "refusal": None}


def call_id(answer: str, number: int, family: str) -> str:
    """One for each call of an answer, which is named by its id and its index; as unique as that.
    Templates of Mistral's models refuse all but nine letters and digits."""
    digest = blake2b(f"{answer}/{number}".encode(), digest_size=12).hexdigest()
    return digest[:9] if family == "mistral" else f"call_{digest}"
