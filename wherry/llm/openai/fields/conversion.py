"""What may stand in a request to /tokenize and /detokenize?"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.chat import ChatRequest
from wherry.llm.openai.fields.kinds import Whole
from wherry.llm.openai.fields.tools import Tools


class Conversion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request that needs a model's tokenizer only: its answer is not streamed."""

    model: str | None = None

    stream: ClassVar[None] = None
    n: ClassVar[None] = None
    priority: ClassVar[None] = None
    include_usage: ClassVar[bool] = False
    continuous_usage: ClassVar[bool] = False

    def inputs(self) -> dict[str, Any]:
        """The model's inputs."""
        raise NotImplementedError

    def named(self, blamed: str) -> str:
        """Return the name that a field which the model blames has in this request."""
        raise NotImplementedError


class TokenizeRequest(Conversion):
    """POST /tokenize, as vLLM has it: of a text, or of a conversation."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of a chat or of a prompt; the answer is its tokens."""
        if (self.prompt is None) == (self.messages is None):
            raise BadField("prompt", "give either prompt or messages")
        if self.messages is None:
            special = self.add_special_tokens is not False
            parameters = {} if special else {"add_special_tokens": False}
            parameters |= self._parameters()
            return {"task": "tokenize", "prompt": self.prompt, "parameters": parameters}
        chat = ChatRequest(
            messages=self.messages,
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template=self.chat_template,
            add_special_tokens=self.add_special_tokens,
        )
        inputs = chat.inputs()
        inputs["parameters"] |= self._parameters()
        return {"task": "tokenize", **inputs}

    def _parameters(self) -> dict[str, bool]:
        return {"report_prompt_tokens": True} if self.return_token_strs else {}

    def named(self, blamed: str) -> str:
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return blamed if self.messages is None else names.get(blamed, blamed)


class DetokenizeRequest(Conversion):
    """POST /detokenize, as vLLM has it."""

    tokens: list[Whole]

    def inputs(self) -> dict[str, Any]:
        return {"task": "detokenize", "token_ids": self.tokens}

    def named(self, blamed: str) -> str:
        return {"prompt": "tokens"}.get(blamed, blamed)
