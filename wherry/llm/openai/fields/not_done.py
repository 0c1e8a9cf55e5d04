"""Which fields are known and yet not done, and which of their values ask for nothing?

Such a field is never ignored: the caller counts on what it asks for.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class NotDone(msgspec.Struct, frozen=True):
    """A field that is refused, unless its value is one of `neutral`."""

    #: Values that ask for nothing.
    neutral: tuple[Any, ...] = ()
    #: What to send in its place.
    use: str = ""

    @property
    def instead(self) -> str:
        return f"; send {self.use} instead" if self.use else ""

    def asks_nothing(self, value: bytes) -> bool:
        """Whether this JSON asks for nothing."""
        try:
            return msgspec.json.decode(value) in self.neutral
        except msgspec.ValidationError:  # a number beyond all floats
            return False


#: Of chats and completions.
OF_GENERATIONS: Final = {
    "use_beam_search": NotDone((False,)),
    "length_penalty": NotDone((1.0,)),
    "early_stopping": NotDone((False,)),
    "logits_processors": NotDone(([],)),
    "kv_transfer_params": NotDone(({},)),
    "vllm_xargs": NotDone(({},)),
    "prompt_embeds": NotDone(([], "")),
    "guided_whitespace_pattern": NotDone(),
}
#: Of chats alone.
OF_CHATS: Final = {
    **OF_GENERATIONS,
    "audio": NotDone(),
    "verbosity": NotDone(("medium",)),
    "web_search_options": NotDone(),
    "functions": NotDone(([],), use="tools"),
    "function_call": NotDone(("none",), use="tool_choice"),
}
#: Of responses.
OF_RESPONSES: Final = {
    "prompt": NotDone(use="its text as input"),
    "max_tool_calls": NotDone(),
    "context_management": NotDone(([],)),
}
#: Of vectors and scores, as vLLM knows them.
OF_TASKS: Final = {
    "mm_processor_kwargs": NotDone(({},)),
    "media_io_kwargs": NotDone(({},)),
    "chat_template": NotDone(),
    "chat_template_kwargs": NotDone(({},)),
    "cache_salt": NotDone(),
    "embed_dtype": NotDone(("float32",)),
    "endianness": NotDone(("native", "little")),
    "normalize": NotDone(use="use_activation"),
}
OF_SCORES: Final = {
    **OF_TASKS,
    "rank_fields": NotDone((["text"],), use="one text each"),
}
