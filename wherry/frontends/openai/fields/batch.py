"""What may stand in a request to /v1/chat/completions/batch: several conversations at once?"""

from __future__ import annotations

from typing import Any

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.chat import ChatRequest
from wherry.frontends.openai.fields.completion import MAX_PROMPTS
from wherry.frontends.openai.fields.messages import conversation
from wherry.frontends.openai.prompts import Prompts


class BatchRequest(ChatRequest):
    """POST /v1/chat/completions/batch, as vLLM has it: a chat's fields, for each conversation. Its
    answer has a choice for each, and is not streamed."""

    messages: list[list[dict[str, Any]]]  # type: ignore[assignment] # of several chats

    def prompts(self) -> Prompts:
        """The model's inputs for each conversation."""
        given = self.messages
        if not 0 < len(given) <= MAX_PROMPTS:
            problem = f"must hold 1 to {MAX_PROMPTS} conversations, not {len(given)}"
            raise BadField("messages", problem)
        alone = "; send each conversation to /v1/chat/completions"
        if self.stream:
            raise BadField("stream", f"a batch is answered in one piece{alone}")
        if self.n not in (None, 1):
            raise BadField("n", f"each conversation has one answer in a batch{alone}")
        for field in ("tools", "echo"):
            if getattr(self, field):
                raise BadField(field, f"a batch does not take it{alone}")
        own = [{"messages": conversation(c, f"messages[{i}]")} for i, c in enumerate(given)]
        return Prompts.of(own, self.shared_inputs(), "messages")
