"""Of which blocks do messages consist, and which messages are they to a chat template?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from wherry.llm.engine.chat_form import BETWEEN_PARTS
from wherry.llm.openai.errors import BadField

Json = dict[str, Any]


class Block(msgspec.Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A part of a message."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block, tag="text"):
    text: str
    #: What an answer cites says nothing to the model that has given it.
    citations: msgspec.Raw = msgspec.Raw()

    @property
    def is_attribution(self) -> bool:
        """Whether it only says whom to bill, in other words for each request of Claude Code: no
        two would share a prefix."""
        return self.text.startswith("x-anthropic-billing-header")


class ImageBlock(Block, tag="image"):
    """A picture, which no model of texts takes."""

    source: msgspec.Raw = msgspec.Raw()


class Citations(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False


class DocumentBlock(Block, tag="document"):
    """A file. No model of texts takes it unless it is one."""

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
    """What one of the two has said, or what the model is told between two turns."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock]

    #: The blocks that a role may have.
    ALLOWED: ClassVar = {
        "user": (TextBlock, DocumentBlock, SearchResultBlock, ToolResultBlock),
        "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
        "system": (TextBlock,),
    }


def conversation(messages: Sequence[InputMessage]) -> Iterator[Json]:
    """The messages of a chat that say the same."""
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
    """A text, or blocks that are texts, with this between them."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for i, block in enumerate(content):
        if not (isinstance(block, TextBlock) and block.is_attribution):
            texts.append(_text(block, f"{where}[{i}]"))
    return between.join(texts)


def _text(block: AnyBlock, where: str) -> str:
    """What a model of texts is given of a block."""
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
    """Whether a block asks for what comes before it to be kept."""
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
