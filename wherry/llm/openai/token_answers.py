"""How is a prompt answered with its tokens or their number, or tokens with their text?"""

from __future__ import annotations

from typing import Literal

import msgspec

from wherry.llm.openai.answers import ChoiceDelta, Json, OpenAIAnswer


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


class ResponseTokens(msgspec.Struct):
    """How many tokens the model would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class TokensAnswer(OpenAIAnswer):
    """The tokens of a prompt, in vLLM's form."""

    kind = chunk_kind = prefix = "tokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        tokens = [int(token) for token in piece.token_ids]
        self._list = TokenList(
            count=len(tokens),
            max_model_len=piece.usage.get("context_tokens"),
            tokens=tokens,
            token_strs=piece.details.get("token_strs"),
        )
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> TokenList:
        return self._list


class PromptAnswer(OpenAIAnswer):
    """The text of tokens, in vLLM's form."""

    kind = chunk_kind = prefix = "detokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self._text = piece.text
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> TokensText:
        return TokensText(self._text)


class CountAnswer(OpenAIAnswer):
    """How many tokens a conversation has."""

    kind = chunk_kind = ""
    prefix = "count"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self._count = len(piece.token_ids)
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> CountedTokens | ResponseTokens:
        return CountedTokens(self._count)


class ResponseCountAnswer(CountAnswer):
    """The same of a response that is not made."""

    kind = "response.input_tokens"

    def whole(self) -> ResponseTokens:
        return ResponseTokens("response.input_tokens", self._count)
