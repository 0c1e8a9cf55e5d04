"""What may stand in a request to /v1/messages, and which chat is it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.anthropic.blocks import (
    InputMessage,
    TextBlock,
    conversation,
    marks_cache,
    text_of,
)
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.chat import ChatRequest
from wherry.llm.openai.fields.form import JsonSchema, ResponseFormat
from wherry.llm.openai.fields.kinds import Positive, Whole
from wherry.llm.openai.fields.not_done import NotDone
from wherry.llm.openai.fields.tools import (
    MOST_TOOLS,
    NamedFunction,
    NamedTool,
)

#: What asks for more than a model's answer.
#: What Claude Code says of a conversation that is to be read whole.
KEEPS_THOUGHTS: Final = {"type": "clear_thinking_20251015", "keep": "all"}
NOT_DONE: Final = {
    "mcp_servers": NotDone(([],)),
    "container": NotDone(),
    "context_management": NotDone(({}, {"edits": []}, {"edits": [KEEPS_THOUGHTS]})),
}
#: Fields of the chat by their names in the request.
NAMES: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs": "thinking",
    "template": "thinking",
    "max_completion_tokens": "max_tokens",
}


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the client runs."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class Choice(msgspec.Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Which of the tools may, or must, be called."""

    disable_parallel_tool_use: bool | None = None


class AutoChoice(Choice, tag="auto"):
    pass


class AnyChoice(Choice, tag="any"):
    pass


class NoChoice(Choice, tag="none"):
    pass


class NamedChoice(Choice, tag="tool"):
    name: str


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = None
    display: str | None = None


class SchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: SchemaFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens: what of a message's request is read by the model."""

    not_done: ClassVar[Mapping[str, NotDone]] = NOT_DONE

    #: None: the only one there is.
    model: str | None = None
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[CustomTool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | NoChoice | NamedChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    #: As `output_config.format`, by the name that it had before.
    output_format: SchemaFormat | None = None
    cache_control: dict[str, Any] | None = None

    stream: ClassVar[bool | None] = None
    n: ClassVar[None] = None
    priority: ClassVar[None] = None
    include_usage: ClassVar[bool] = False

    def chat(self) -> ChatRequest:
        """The chat that has the same answer."""
        if not self.messages:
            raise BadField("messages", "must hold at least one message")
        messages = list(conversation(self.messages))
        if system := text_of(self.system, "system"):
            messages.insert(0, {"role": "system", "content": system})
        return self._chat(messages)

    def _chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        last = messages[-1] if messages else {}
        goes_on = last.get("role") == "assistant" and "tool_calls" not in last
        effort = None if self.output_config is None else self.output_config.effort
        chosen = self.tool_choice
        single = None if chosen is None else chosen.disable_parallel_tool_use
        return ChatRequest(
            model=self.model,
            messages=messages,
            tools=self._tools(),
            tool_choice=_choice(chosen),
            parallel_tool_calls=False if single else None,
            response_format=self._format(),
            reasoning_effort=effort,
            continue_final_message=True if goes_on else None,
            chat_template_kwargs=self._thinking(),
        )

    def count(self) -> dict[str, Any]:
        """The inputs of a model that counts the tokens of this conversation."""
        return {"task": "tokenize", **self.chat().inputs()}

    def named(self, blamed: str) -> str:
        """Return the name that a field which the engine blames has in this request."""
        if blamed == "constraint" and _choice(self.tool_choice) not in (None, "auto", "none"):
            return "tool_choice"
        name = self._chat([]).named(blamed)
        return NAMES.get(name, name)

    def marks_cache(self) -> bool:
        """Whether the request asks for its beginning to be kept, as Anthropic's clients do who
        want to know what of it was."""
        parts_of_prompt = (self.system, self.tools, *(message.content for message in self.messages))
        return self.cache_control is not None or any(map(marks_cache, parts_of_prompt))

    def _tools(self) -> list[dict[str, Any]] | None:
        if self.tools is None:
            return None
        made: list[dict[str, Any]] = []
        for i, tool in enumerate(self.tools):
            if tool.type not in (None, "custom"):
                problem = f"only tools that the client runs are supported, not {tool.type[:40]!r}"
                raise BadField(f"tools[{i}].type", problem)
            if tool.input_schema is None:
                raise BadField(f"tools[{i}].input_schema", "is missing")
            about = {"description": tool.description, "strict": tool.strict}
            sent = {name: value for name, value in about.items() if value is not None}
            function = {"name": tool.name, **sent, "parameters": tool.input_schema}
            made.append({"type": "function", "function": function})
        return made

    def _thinking(self) -> dict[str, Any] | None:
        """Variables of the chat template, by the two names that families have for it."""
        if self.thinking is None or self.thinking.type == "adaptive":
            return None
        return dict.fromkeys(("enable_thinking", "thinking"), self.thinking.type == "enabled")

    def _format(self) -> ResponseFormat | None:
        form = self.output_format
        if self.output_config is not None:
            form = self.output_config.format or form
        if form is None:
            return None
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=form.schema))


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Positive
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    stream: bool | None = None  # type: ignore[misc] # counting has none

    # Accepted: they say nothing about the answer.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    def inputs_of(self, chat: ChatRequest) -> dict[str, Any]:
        """The inputs of a model for the chat that this is."""
        inputs = chat.inputs()
        inputs["parameters"]["clip_max_tokens"] = True  # clients send the most of a larger model
        return inputs

    def _chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        chat = super()._chat(messages)
        chat.max_tokens = self.max_tokens
        chat.stop = self.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = self.temperature, self.top_p, self.top_k
        return chat


def _choice(
    chosen: AutoChoice | AnyChoice | NoChoice | NamedChoice | None,
) -> Literal["none", "auto", "required"] | NamedTool | None:
    match chosen:
        case None:
            return None
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
        case NamedChoice(name=name):
            return NamedTool(function=NamedFunction(name=name))
        case _:
            return "auto"
