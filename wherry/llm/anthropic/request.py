"""What may stand in a request to /v1/messages, and which chat is it to a chat template?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.engine.chat_form import BETWEEN_PARTS
from wherry.llm.openai.chat_request import (
    MOST_TOOLS,
    ChatCall,
    ChatRequest,
    FunctionName,
    NamedFunction,
    NamedTool,
)
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation_request import JsonSchema, ResponseFormat
from wherry.llm.openai.reading import NotDone, Positive, Whole

Json = dict[str, Any]


class Block(msgspec.Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A part of a message."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block, tag="text"):
    text: str
    #: An answer's citations are of no use to the model that wrote it.
    citations: msgspec.Raw = msgspec.Raw()

    @property
    def is_attribution(self) -> bool:
        """Whether it only names the account to bill. Claude Code sends another text with each
        request, so that no two would share a prefix."""
        return self.text.startswith("x-anthropic-billing-header")


class ImageBlock(Block, tag="image"):
    """A picture, which no text model takes."""

    source: msgspec.Raw = msgspec.Raw()


class Citations(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False


class DocumentBlock(Block, tag="document"):
    """A file. A text model takes it only if it is text."""

    source: dict[str, Any] = {}
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Block, tag="search_result"):
    """A text that was found somewhere."""

    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ThinkingBlock(Block, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, tag="redacted_thinking"):
    """Thoughts that only their author can read."""

    data: str | None = None


class ToolUseBlock(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Block, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


AnyBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A turn of the user or the assistant, or a system message between two turns."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock]

    #: The blocks that a role may have.
    ALLOWED: ClassVar = {
        "user": (TextBlock, DocumentBlock, SearchResultBlock, ToolResultBlock),
        "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
        "system": (TextBlock,),
    }


def conversation(messages: Sequence[InputMessage]) -> Iterator[Json]:
    """The same messages in a chat's form."""
    for place, message in enumerate(messages):
        where = f"messages[{place}].content"
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
            continue
        allowed = InputMessage.ALLOWED[message.role]
        for i, block in enumerate(message.content):
            if not isinstance(block, allowed):
                raise _refused(block, f"{where}[{i}]", message.role)
        if message.role == "assistant":
            yield _assistants(message.content)
        elif message.role == "system":
            yield {"role": "system", "content": text_of(message.content, where)}
        else:
            yield from _users(message.content, where)


def text_of(content: str | Sequence[AnyBlock] | None, where: str, between: str = "") -> str:
    """A text, or blocks that are texts, joined by `between`."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for i, block in enumerate(content):
        if not (isinstance(block, TextBlock) and block.is_attribution):
            texts.append(_text(block, f"{where}[{i}]"))
    return between.join(texts)


def _text(block: AnyBlock, where: str) -> str:
    """The text of a block for a text model."""
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock(source={"type": "text", "data": str(text)}):
            block_texts: tuple[str | None, ...] = (block.title, block.context, text)
        case DocumentBlock(source={"type": "content", "content": str(text)}):
            block_texts = (block.title, block.context, text)
        case SearchResultBlock():
            block_texts = (block.title, block.source, *(part.text for part in block.content))
        case _:
            raise _refused(block, where)
    if block.citations is not None and block.citations.enabled:
        raise BadField(f"{where}.citations", "is not supported: the answer cites nothing")
    return BETWEEN_PARTS.join(part for part in block_texts if part)


def marks_cache(content: object) -> bool:
    """Whether a block requests that the prompt before it is cached."""
    return isinstance(content, list) and any(
        block.cache_control is not None or marks_cache(getattr(block, "content", None))
        for block in content
    )


def _assistants(blocks: Sequence[AnyBlock]) -> Json:
    made: Json = {
        "role": "assistant",
        "content": "".join(b.text for b in blocks if isinstance(b, TextBlock)),
    }
    if thoughts := "".join(b.thinking for b in blocks if isinstance(b, ThinkingBlock)):
        made["reasoning_content"] = thoughts
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": b.input}}
        for b in blocks
        if isinstance(b, ToolUseBlock)
    ]
    return {**made, "tool_calls": calls} if calls else made


def _users(blocks: Sequence[AnyBlock], where: str) -> Iterator[Json]:
    """Results of tools are messages of their own; the texts between two of them are one."""
    texts: list[str] = []
    for i, block in enumerate(blocks):
        if not isinstance(block, ToolResultBlock):
            texts.append(_text(block, f"{where}[{i}]"))
            continue
        if texts:
            yield {"role": "user", "content": BETWEEN_PARTS.join(texts)}
            texts = []
        result = text_of(block.content, f"{where}[{i}].content", BETWEEN_PARTS)
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
    if texts or not blocks:
        yield {"role": "user", "content": BETWEEN_PARTS.join(texts)}


def _refused(block: AnyBlock, where: str, role: str = "") -> BadField:
    kind = block.__struct_config__.tag
    if isinstance(block, ImageBlock | DocumentBlock):
        return BadField(where, f"this model takes text only, and no block of type '{kind}'")
    return BadField(where, f"a message of the {role} has no block of type '{kind}'")


#: Claude Code's edit for a conversation that is read whole.
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

    name: FunctionName
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class Choice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of the tools may, or must, be called."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def of_chat(self) -> Literal["none", "auto", "required"] | NamedTool:
        match self.type:
            case "any":
                return "required"
            case "tool":
                if self.name is None:
                    raise BadField("tool_choice.name", "is missing")
                return NamedTool(function=NamedFunction(name=self.name))
            case other:
                return other


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
    """POST /v1/messages/count_tokens: the fields of a message that the model reads."""

    not_done: ClassVar[Mapping[str, NotDone]] = NOT_DONE

    #: None: the only model.
    model: str | None = None
    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[CustomTool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    #: As `output_config.format`, by its former name.
    output_format: SchemaFormat | None = None
    cache_control: dict[str, Any] | None = None

    stream: ClassVar[bool | None] = None
    n: ClassVar[None] = None
    priority: ClassVar[None] = None

    def chat(self) -> ChatRequest:
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
            tool_choice=None if chosen is None else chosen.of_chat(),
            parallel_tool_calls=False if single else None,
            response_format=self._format(),
            reasoning_effort=effort,
            continue_final_message=True if goes_on else None,
            chat_template_kwargs=self._thinking(),
        )

    def call(self) -> ChatCall:
        """The inputs for a model that count the tokens of this conversation."""
        call = self.chat().call()
        call.inputs["task"] = "tokenize"
        return call

    def named(self, blamed: str) -> str:
        chosen = self.tool_choice
        if blamed == "constraint" and chosen is not None and chosen.type in ("any", "tool"):
            return "tool_choice"
        name = self._chat([]).named(blamed)
        return NAMES.get(name, name)

    def marks_cache(self) -> bool:
        """Whether the request marks its beginning for the cache, as Anthropic's clients do to get
        the number of cached tokens."""
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

    # Accepted without effect on the answer.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    def call(self) -> ChatCall:
        call = self.chat().call("input_schema")
        call.inputs["parameters"]["clip_max_tokens"] = True  # clients send a larger model's maximum
        return call

    def _chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        chat = super()._chat(messages)
        chat.max_tokens = self.max_tokens
        chat.stop = self.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = self.temperature, self.top_p, self.top_k
        return chat
