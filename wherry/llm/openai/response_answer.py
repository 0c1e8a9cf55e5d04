"""How does a chat's answer become a response: items, and numbered events while it goes on?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.openai.chat_answer import ChatAnswer, ChatChoice
from wherry.llm.openai.errors import OpenAIError, OpenAIErrorFields
from wherry.llm.openai.generation import ChoiceDelta, ReasoningTokens
from wherry.llm.openai.parts import AnswerPart, PartedAnswer
from wherry.llm.openai.response_request import Reasoning, ResponseText, ResponseTool

Unset = msgspec.UnsetType


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """A text of a message."""

    text: str
    annotations: list[Any] = []
    #: OpenAI's clients count on it; only chats have any.
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """The model's message."""

    id: str
    status: str
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputReasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought, as an item."""

    id: str
    status: str
    summary: list[Any] = []
    content: list[ReasoningText]


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | Unset = msgspec.UNSET
    arguments: str


Item = OutputMessage | OutputReasoning | OutputCall


class CachedInput(msgspec.Struct, kw_only=True):
    """Tokens of the input that were not computed again."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, with the fields of the request that it repeats."""

    #: For OpenAPI: what it has of a request's types is as open as the request.
    takes_any_members: ClassVar[bool] = True

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: str
    background: Literal[False] = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item]
    store: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    text: ResponseText
    tools: list[ResponseTool] = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None


class ResponseEvent(msgspec.Struct, kw_only=True):
    """A step of a response."""

    #: For OpenAPI: what it has of a request's types is as open as the request.
    takes_any_members: ClassVar[bool] = True

    type: str
    sequence_number: int
    response: ResponseObject | Unset = msgspec.UNSET
    item_id: str | Unset = msgspec.UNSET
    output_index: int | Unset = msgspec.UNSET
    content_index: int | Unset = msgspec.UNSET
    item: Item | Unset = msgspec.UNSET
    part: OutputText | ReasoningText | Unset = msgspec.UNSET
    logprobs: list[Any] | Unset = msgspec.UNSET
    delta: str | Unset = msgspec.UNSET
    text: str | Unset = msgspec.UNSET
    name: str | Unset = msgspec.UNSET
    arguments: str | Unset = msgspec.UNSET
    # Of an error: also in `error`, where OpenAI's client looks for it.
    code: str | Unset | None = msgspec.UNSET
    message: str | Unset = msgspec.UNSET
    param: str | Unset | None = msgspec.UNSET
    error: OpenAIErrorFields | Unset = msgspec.UNSET


class ResponseAnswer(PartedAnswer[ResponseEvent]):
    """Items: what the model thought, messages, and calls of tools.

    `repeated` are the fields of the request that the response repeats; `keep` is called with the
    response when it has ended, and returns whether it is kept: it may be too large. `names` are the
    members that name a call in items, by the name that the model calls.
    """

    kind, prefix = "response", "resp"

    def __init__(
        self,
        chat: ChatAnswer,
        repeated: Mapping[str, Any],
        keep: Callable[[ResponseObject], bool] | None = None,
        names: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(chat)
        self._repeated = repeated
        self._keep = keep
        self._names = names or {}
        self._status = "in_progress"
        self._items: list[Item] = []
        self._events = 0

    def begun(self, piece: ChoiceDelta | None) -> list[ResponseEvent]:
        return [
            self._event("created", response=self.whole()),
            self._event("in_progress", response=self.whole()),
        ]

    def opened(self, part: AnswerPart) -> list[ResponseEvent]:
        item = self._item(part, "in_progress")
        if isinstance(item, OutputCall):
            return [self._event("output_item.added", output_index=part.place, item=item)]
        begun = msgspec.structs.replace(item, content=[])
        return [
            self._event("output_item.added", output_index=part.place, item=begun),
            self._of_part(part, "content_part.added", part=item.content[0]),
        ]

    def grown(self, part: AnswerPart, text: str) -> list[ResponseEvent]:
        return [self._of_part(part, f"{PARTS[part.kind][1]}.delta", delta=text)]

    def closed(self, part: AnswerPart, *, cut: bool) -> list[ResponseEvent]:
        item = self._item(part, "incomplete" if cut else "completed")
        self._items.append(item)
        done = f"{PARTS[part.kind][1]}.done"
        if isinstance(item, OutputCall):
            events = [self._of_part(part, done, name=item.name, arguments=part.text)]
        else:
            events = [
                self._of_part(part, done, text=part.text),
                self._of_part(part, "content_part.done", part=item.content[0]),
            ]
        return [*events, self._event("output_item.done", output_index=part.place, item=item)]

    def ended(self, choice: ChatChoice) -> list[ResponseEvent]:
        cut = choice.finish_reason == "length"
        events: list[ResponseEvent] = []
        if not self.parts:
            empty = AnswerPart("text", 0)
            self.parts.append(empty)
            events = [*self.opened(empty), *self.closed(empty, cut=cut)]
        self._status = "incomplete" if cut else "completed"
        whole = self.whole()
        if self._keep is not None and not self._keep(whole):
            self._repeated = {**self._repeated, "store": False}
            whole = self.whole()
        return [*events, self._event(self._status, response=whole)]

    def whole(self) -> ResponseObject:
        ended = self._status != "in_progress"
        cut = self._status == "incomplete"
        return ResponseObject(
            id=self.id,
            created_at=self.created,
            status=self._status,
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            model=self.model,
            output=list(self._items) if ended else [],
            usage=self._usage() if ended else None,
            **self._repeated,
        )

    def _usage(self) -> ResponseUsage:
        usage = self.usage
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=CachedInput(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=ReasoningTokens(usage.reasoning_tokens or 0),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )

    def failure(self, error: bytes) -> tuple[str, bytes]:
        """OpenAI's error event, with the member `error` that OpenAI's client looks for."""
        fields = msgspec.json.decode(error, type=OpenAIError).error
        about = {"code": fields.code, "message": fields.message, "param": fields.param}
        event = self._event("error", **about, error=fields)
        event.type = "error"
        return "error", msgspec.json.encode(event)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        number = self._events
        self._events += 1
        return ResponseEvent(type=f"response.{kind}", sequence_number=number, **fields)

    def _of_part(self, part: AnswerPart, kind: str, /, **fields: Any) -> ResponseEvent:
        event = self._event(kind, item_id=self._id(part), output_index=part.place, **fields)
        if part.kind != "call":
            event.content_index = 0
        if kind.startswith("output_text."):
            event.logprobs = []
        return event

    def _id(self, part: AnswerPart) -> str:
        return f"{PARTS[part.kind][0]}_{self.request_id}_{part.place}"

    def _item(self, part: AnswerPart, status: str) -> Item:
        id = self._id(part)
        if part.kind == "call":
            named = self._names.get(part.name, {})
            return OutputCall(
                id=id,
                status=status,
                call_id=part.id,
                name=named.get("name", part.name),
                namespace=named.get("namespace", msgspec.UNSET),
                arguments=part.text,
            )
        if part.kind == "reasoning":
            return OutputReasoning(id=id, status=status, content=[ReasoningText(text=part.text)])
        return OutputMessage(id=id, status=status, content=[OutputText(text=part.text)])


#: How the id of a part's item begins, and how the events of its text are called.
PARTS: Final = {
    "reasoning": ("rs", "reasoning_text"),
    "text": ("msg", "output_text"),
    "call": ("fc", "function_call_arguments"),
}
