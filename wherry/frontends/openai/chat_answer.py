"""How do a model's pieces become the messages of a chat, with calls of tools?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wherry.frontends.openai.answers import AnswerParts, ChoiceDelta, Json, OpenAIAnswer
from wherry.frontends.openai.tool_calls import ToolCall, ToolText, call_id


class ChatAnswer(OpenAIAnswer):
    """Messages of the assistant; with `tools`, calls of them are taken out of the text.

    `most_calls`: what goes beyond is left out, for callers that can do with one only. `echo` stands
    in front of each text.
    """

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self,
        model: str,
        request_id: str,
        tools: Collection[str] = (),
        most_calls: int | None = None,
        *,
        echo: str = "",
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(model, request_id, shown)
        self._echo = echo
        #: Of the prompt: its tokens, and their log probabilities.
        self._prompt: Json = {"prompt_token_ids": None, "prompt_logprobs": None}
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
                "stop_reason": None,
                "token_ids": [] if self.shown.token_ids else None,
            }
            if self._tools:
                self._texts[piece.index] = ToolText(self._tools)
            chunks.append(_delta(piece.index, {"role": "assistant", "content": ""}))
            if self._echo:
                choice["message"]["content"] = self._echo
                chunks.append(_delta(piece.index, {"content": self._echo}))
        self.usage.add(piece.usage)
        self._prompt |= {n: piece.details[n] for n in self._prompt if n in piece.details}
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
            self._finish(choice, piece, chunks)
        if self.shown.token_ids and piece.token_ids:
            choice["token_ids"] += piece.token_ids
            chunks = chunks or [_delta(piece.index, {})]
            chunks[-1]["token_ids"] = list(piece.token_ids)
        return chunks

    def end(self) -> list[Json]:
        """A plain model says nothing at its end: it has stopped."""
        left = [choice for choice in self.choices.values() if choice["finish_reason"] is None]
        chunks: list[Json] = []
        for choice in left:
            chunks += self.add(ChoiceDelta(choice["index"], "", "stop"))
        return chunks

    def whole(self) -> Json:
        return {**super().whole(), **self._prompt}

    def chunk(self, choice: Json) -> Json:
        made = super().chunk(choice)
        if "role" in choice["delta"] and (tokens := self._prompt["prompt_token_ids"]) is not None:
            made["prompt_token_ids"] = tokens
        return made

    def _finish(self, choice: Json, piece: ChoiceDelta, chunks: list[Json]) -> None:
        """Note the end, and say it with the last text, or in a chunk of its own."""
        message, reason = choice["message"], piece.finish_reason
        if "tool_calls" in message:
            message["content"] = message["content"] or None
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

    def said(token: Mapping[str, Any]) -> Json:
        return {name: token[name] for name in ("token", "logprob", "bytes")}

    content = [{**said(t), "top_logprobs": [said(top) for top in t["top"]]} for t in tokens]
    return {"content": content, "refusal": None}
