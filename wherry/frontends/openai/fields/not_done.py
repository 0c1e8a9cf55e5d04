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
    "thinking_token_budget": NotDone(),
    "prompt_embeds": NotDone(([], "")),
    "guided_whitespace_pattern": NotDone(),
}
#: Of chats alone.
OF_CHATS: Final = {
    **OF_GENERATIONS,
    "audio": NotDone(),
    "verbosity": NotDone(("medium",)),
    "web_search_options": NotDone(),
    "functions": NotDone(use="tools"),
    "function_call": NotDone(use="tool_choice"),
}
#: Of responses.
OF_RESPONSES: Final = {
    "prompt": NotDone(use="its text as input"),
    "max_tool_calls": NotDone(),
    "context_management": NotDone(([],)),
}
#: Of vectors and of scores, as vLLM knows them: what a model reads of a text, and which numbers it
#: makes, is its own business.
OF_TASKS: Final = {
    "truncate_prompt_tokens": NotDone(),
    "truncation_side": NotDone(),
    "padding": NotDone(("do_not_pad",)),
    "add_special_tokens": NotDone((True,)),
    "use_activation": NotDone(),
    "normalize": NotDone(),
    "mm_processor_kwargs": NotDone(({},)),
    "chat_template": NotDone(),
    "chat_template_kwargs": NotDone(({},)),
}
OF_EMBEDDINGS: Final = {
    **OF_TASKS,
    "embed_dtype": NotDone(("float32",)),
    "endianness": NotDone(("native", "little")),
    "messages": NotDone(use="input"),
}
#: Of `/v2/embed`, as Cohere knows them.
OF_EMBED: Final = {
    "truncate": NotDone(("END",)),
    "max_tokens": NotDone(),
    "images": NotDone(([],)),
    "inputs": NotDone(([],), use="texts"),
}
OF_SCORES: Final = {
    **OF_TASKS,
    "max_tokens_per_query": NotDone((0,)),
    "max_tokens_per_doc": NotDone((0,)),
    "instruction": NotDone(("",)),
    "rank_fields": NotDone((["text"],), use="one text each"),
}
