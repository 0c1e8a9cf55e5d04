"""How is a prompt answered with its tokens or their number, and tokens with their text?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from wherry.llm.openai.chat_request import ChatRequest, Tools
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation import Answering, ChoiceDelta, OpenAIAnswer
from wherry.llm.openai.generation_request import ModelCall
from wherry.llm.openai.reading import Whole


class Conversion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request that needs a model's tokenizer only: its answer is not streamed."""

    model: str | None = None

    stream: ClassVar[None] = None
    n: ClassVar[None] = None
    priority: ClassVar[None] = None


#: Fields of the request that a chat does not have.
OWN: Final = ("prompt", "return_token_strs")


class TokenizeRequest(Conversion):
    """POST /tokenize, as in vLLM: of a text, or of a conversation."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def call(self) -> ModelCall:
        """Return the inputs of a chat or of a prompt; the answer is its tokens."""
        if (self.prompt is None) == (self.messages is None):
            raise BadField("prompt", "give either prompt or messages")
        if self.messages is None:
            special = self.add_special_tokens is not False
            parameters = {} if special else {"add_special_tokens": False}
            parameters |= self._parameters()
            return ModelCall({"task": "tokenize", "prompt": self.prompt, "parameters": parameters})
        of_chats = {n: getattr(self, n) for n in self.__struct_fields__ if n not in OWN}
        call = ChatRequest(**of_chats).call()
        call.inputs["parameters"] |= self._parameters()
        call.inputs["task"] = "tokenize"
        return call

    def _parameters(self) -> dict[str, bool]:
        return {"report_prompt_tokens": True} if self.return_token_strs else {}

    def named(self, blamed: str) -> str:
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return blamed if self.messages is None else names.get(blamed, blamed)


class DetokenizeRequest(Conversion):
    """POST /detokenize, as in vLLM."""

    tokens: list[Whole]

    def call(self) -> ModelCall:
        return ModelCall({"task": "detokenize", "token_ids": self.tokens})

    def named(self, blamed: str) -> str:
        return {"prompt": "tokens"}.get(blamed, blamed)


class TokenList(msgspec.Struct, kw_only=True):
    """The tokens of a text or a conversation."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class TokensText(msgspec.Struct):
    """The text of tokens."""

    prompt: str


class CountedTokens(msgspec.Struct):
    """How many tokens a conversation has."""

    input_tokens: int


class TokenizerAnswer(OpenAIAnswer):
    """An answer that is `made` of its only piece."""

    kind = prefix = "tokenize"

    def __init__(
        self, model: str, request_id: str, made: Callable[[ChoiceDelta], msgspec.Struct]
    ) -> None:
        super().__init__(model, request_id)
        self._made = made

    def add(self, piece: ChoiceDelta) -> list[msgspec.Struct]:
        self._whole = self._made(piece)
        return []

    def end(self) -> list[msgspec.Struct]:
        return []

    def whole(self) -> msgspec.Struct:
        return self._whole


def answered_by(made: Callable[[ChoiceDelta], msgspec.Struct]) -> Answering:
    """Answer with what is made of the only piece."""
    return lambda request, loaded, fields, _: TokenizerAnswer(
        fields.model or loaded.reported_name(), request.id, made
    )


def token_list(piece: ChoiceDelta) -> TokenList:
    """The tokens of a prompt, in vLLM's form."""
    return TokenList(
        count=len(piece.token_ids),
        max_model_len=piece.usage.get("context_tokens"),
        tokens=list(piece.token_ids),
        token_strs=piece.details.get("token_strs"),
    )
