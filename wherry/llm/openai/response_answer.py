"""How does a chat's answer become a response: items, and numbered events while it goes on?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.generation import ChoiceDelta, Json
from wherry.llm.openai.parts import AnswerPart, PartedAnswer


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, with the fields of the request that it repeats."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[Json]


class ResponseEvent(msgspec.Struct, kw_only=True):
    """A step of a response."""

    type: str
    sequence_number: int


class ResponseAnswer(PartedAnswer):
    """Items: what the model thought, messages, and calls of tools.

    `repeated` is what the response says of its request; `keep` is called with the response when it
    has ended, and returns whether it is kept: it may be too large. `names` are what items say of a
    call in place of the name that the model gave it.
    """

    kind, chunk_kind, prefix = "response", "response", "resp"

    def __init__(
        self,
        chat: ChatAnswer,
        repeated: Json,
        keep: Callable[[Json], bool] | None = None,
        names: Mapping[str, Json] | None = None,
    ) -> None:
        super().__init__(chat)
        self._repeated = repeated
        self._keep = keep
        self._names = names or {}
        self._status = "in_progress"
        self._items: list[Json] = []
        self._events = 0

    def begun(self, piece: ChoiceDelta | None) -> list[Json]:
        return [
            self._event("created", response=self.whole()),
            self._event("in_progress", response=self.whole()),
        ]

    def opened(self, part: AnswerPart) -> list[Json]:
        item = self._item(part, "in_progress")
        begun = {**item, "content": []} if "content" in item else item
        events = [self._event("output_item.added", output_index=part.place, item=begun)]
        if part.kind != "call":
            events.append(self._of_part(part, "content_part.added", part=item["content"][0]))
        return events

    def grown(self, part: AnswerPart, text: str, logprobs: Sequence[Json]) -> list[Json]:
        return [self._of_part(part, f"{_NAMES[part.kind]}.delta", logprobs, delta=text)]

    def closed(self, part: AnswerPart, *, cut: bool) -> list[Json]:
        item = self._item(part, "incomplete" if cut else "completed")
        self._items.append(item)
        if part.kind == "call":
            told = {"name": item["name"], "arguments": part.text}
            events = [self._of_part(part, "function_call_arguments.done", **told)]
        else:
            events = [
                self._of_part(part, f"{_NAMES[part.kind]}.done", part.logprobs, text=part.text),
                self._of_part(part, "content_part.done", part=item["content"][0]),
            ]
        return [*events, self._event("output_item.done", output_index=part.place, item=item)]

    def ended(self, choice: Json | None) -> list[Json]:
        cut = choice is not None and choice["finish_reason"] == "length"
        events: list[Json] = []
        if not self.parts:
            empty = AnswerPart("text", 0)
            self._give_tokens(empty)
            self.parts.append(empty)
            events = [*self.opened(empty), *self.closed(empty, cut=cut)]
        self._status = "incomplete" if cut else "completed"
        whole = self.whole()
        if self._keep is not None and not self._keep(whole):
            self._repeated = {**self._repeated, "store": False}
            whole = self.whole()
        return [*events, self._event(self._status, response=whole)]

    def whole(self) -> Json:
        usage = self.usage
        ended = self._status != "in_progress"
        cut = self._status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": self._status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.model,
            "output": list(self._items) if ended else [],
            "store": False,
            **self._repeated,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            }
            if ended
            else None,
        }

    def failure(self, error: Json) -> Json:
        """Return OpenAI's error event, with the member `error` that OpenAI's client looks for."""
        error_fields = error["error"]
        about = {name: error_fields[name] for name in ("code", "message", "param")}
        return {**self._event("error", **about), "type": "error", "error": error_fields}

    def _event(self, kind: str, **fields: Any) -> Json:
        number = self._events
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}

    def _of_part(
        self, part: AnswerPart, kind: str, logprobs: Sequence[Json] = (), /, **fields: Any
    ) -> Json:
        """An event that tells of a part's item, and of its only content."""
        where: Json = {"item_id": self._id(part), "output_index": part.place}
        if part.kind != "call":
            where["content_index"] = 0
        if kind.startswith("output_text."):
            where["logprobs"] = [_without_bytes(token) for token in logprobs]
        return self._event(kind, **where, **fields)

    def _id(self, part: AnswerPart) -> str:
        return f"{PREFIXES[part.kind]}_{self.request_id}_{part.place}"

    def _item(self, part: AnswerPart, status: str) -> Json:
        """A part as an item, with what it holds so far."""
        item = {"id": self._id(part), "status": status}
        if part.kind == "call":
            named = self._names.get(part.name, {"name": part.name})
            call = {"call_id": part.id, **named, "arguments": part.text}
            return {**item, "type": "function_call", **call}
        if part.kind == "reasoning":
            thoughts = [{"type": "reasoning_text", "text": part.text}]
            return {**item, "type": "reasoning", "summary": [], "content": thoughts}
        told = {"text": part.text, "annotations": [], "logprobs": [*part.logprobs]}
        text = {"type": "output_text", **told}
        return {**item, "type": "message", "role": "assistant", "content": [text]}


def _without_bytes(token: Json) -> Json:
    """A token's log probability as events have it."""
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in token["top_logprobs"]]
    return {"token": token["token"], "logprob": token["logprob"], "top_logprobs": top}


#: How the events of a part's text are called.
_NAMES = {
    "reasoning": "reasoning_text",
    "text": "output_text",
    "call": "function_call_arguments",
}
#: How the ids of items begin.
PREFIXES: Final = {"reasoning": "rs", "text": "msg", "call": "fc"}
