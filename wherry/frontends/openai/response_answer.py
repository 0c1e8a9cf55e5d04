"""How does a chat's answer become a response: items, and numbered events while it goes on?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from wherry.frontends.openai.answers import ChoiceDelta, Json, OpenAIAnswer
from wherry.frontends.openai.chat_answer import ChatAnswer


class ResponseAnswer(OpenAIAnswer):
    """One message, calls of tools, or both, in the order in which the model wrote them.

    `repeated` is what the response says of its request.
    """

    kind, chunk_kind, prefix, last = "response", "response", "resp", None

    def __init__(
        self,
        model: str,
        request_id: str,
        repeated: Json,
        tools: Collection[str] = (),
        most_calls: int | None = None,
    ) -> None:
        super().__init__(model, request_id)
        self.id = f"resp_{request_id}"
        self._request_id = request_id
        self._repeated = repeated
        self._chat = ChatAnswer(model, request_id, tools, most_calls)
        self.usage, self.choices = self._chat.usage, self._chat.choices
        self._status = "in_progress"
        self._items: list[Json] = []
        #: The message that goes on.
        self._open: Json | None = None
        self._events = 0

    def add(self, piece: ChoiceDelta) -> list[Json]:
        events = [] if self._events else self._begin()
        for choice in self._chat.add(piece):
            events += self._more(choice)
        return events

    def end(self) -> list[Json]:
        events = [] if self._events else self._begin()
        for choice in self._chat.end():
            events += self._more(choice)
        if not self._items:
            events += self._open_message()
        reasons = [choice["finish_reason"] for choice in self._chat.choices.values()]
        self._status = "incomplete" if "length" in reasons else "completed"
        events += self._close_message(self._status)
        return [*events, self._event(self._status, response=self.whole())]

    def whole(self) -> Json:
        usage = self._chat.usage
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
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **self._repeated,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            }
            if ended
            else None,
        }

    def chunk(self, choice: Json) -> Json:
        return choice

    def failure(self, error: Json) -> Json:
        """Return OpenAI's error event, with the member `error` that OpenAI's client looks for."""
        said = error["error"]
        about = {name: said[name] for name in ("code", "message", "param")}
        return {**self._event("error", **about), "type": "error", "error": said}

    # Events

    def _event(self, kind: str, **fields: Any) -> Json:
        number = self._events
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}

    def _begin(self) -> list[Json]:
        return [
            self._event("created", response=self.whole()),
            self._event("in_progress", response=self.whole()),
        ]

    def _more(self, choice: Json) -> list[Json]:
        """Return the events that a chunk of the chat adds."""
        delta = choice.get("delta", {})
        events: list[Json] = []
        if text := delta.get("content"):
            if self._open is None:
                events += self._open_message()
            events.append(self._text_event("delta", delta=text))
            self._part["text"] += text
        for call in delta.get("tool_calls", ()):
            events += self._close_message("completed")
            events += self._call(call)
        return events

    @property
    def _part(self) -> Json:
        """The text of the message that goes on."""
        assert self._open is not None
        part: Json = self._open["content"][0]
        return part

    @property
    def _place(self) -> int:
        return len(self._items) - 1

    def _text_event(self, kind: str, **fields: Any) -> Json:
        return self._event(f"output_text.{kind}", **self._where(), logprobs=[], **fields)

    def _where(self) -> Json:
        item = self._items[-1]["id"]
        return {"item_id": item, "output_index": self._place, "content_index": 0}

    def _open_message(self) -> list[Json]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._open = {
            "id": f"msg_{self._request_id}_{len(self._items)}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._items.append(self._open)
        added = self._event("output_item.added", output_index=self._place, item={**self._open})
        begun = self._event("content_part.added", **self._where(), part={**part})
        self._open["content"] = [part]
        return [added, begun]

    def _close_message(self, status: str) -> list[Json]:
        if self._open is None:
            return []
        part, message = self._part, self._open
        message["status"] = status
        events = [
            self._text_event("done", text=part["text"]),
            self._event("content_part.done", **self._where(), part=part),
            self._event("output_item.done", output_index=self._place, item=message),
        ]
        self._open = None
        return events

    def _call(self, call: Json) -> list[Json]:
        function = call["function"]
        item = {
            "id": f"fc_{self._request_id}_{len(self._items)}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }
        self._items.append(item)
        at = {"item_id": item["id"], "output_index": self._place}
        begun = {**item, "status": "in_progress", "arguments": ""}
        return [
            self._event("output_item.added", output_index=self._place, item=begun),
            self._event("function_call_arguments.delta", **at, delta=item["arguments"]),
            self._event(
                "function_call_arguments.done",
                **at,
                name=item["name"],
                arguments=item["arguments"],
            ),
            self._event("output_item.done", output_index=self._place, item=item),
        ]
