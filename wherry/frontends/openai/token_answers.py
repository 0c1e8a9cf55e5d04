"""How is a prompt answered with its tokens or their number, or tokens with their text?"""

from __future__ import annotations

from wherry.frontends.openai.answers import ChoiceDelta, Json, OpenAIAnswer


class TokensAnswer(OpenAIAnswer):
    """The tokens of a prompt, in vLLM's form."""

    kind = chunk_kind = prefix = "tokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        tokens = [int(token) for token in piece.token_ids]
        self._whole = {
            "count": len(tokens),
            "max_model_len": piece.usage.get("context_tokens"),
            "tokens": tokens,
            "token_strs": piece.details.get("token_strs"),
        }
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> Json:
        return self._whole


class PromptAnswer(OpenAIAnswer):
    """The text of tokens, in vLLM's form."""

    kind = chunk_kind = prefix = "detokenize"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self._text = piece.text
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> Json:
        return {"prompt": self._text}


class CountAnswer(OpenAIAnswer):
    """How many tokens a conversation has. `kind` is the answer's `object`, if it has one."""

    kind = chunk_kind = ""
    prefix = "count"

    def add(self, piece: ChoiceDelta) -> list[Json]:
        self._count = len(piece.token_ids)
        return []

    def end(self) -> list[Json]:
        return []

    def whole(self) -> Json:
        counted = {"input_tokens": self._count}
        return {"object": self.kind, **counted} if self.kind else counted


class ResponseCountAnswer(CountAnswer):
    """The same of a response that is not made."""

    kind = "response.input_tokens"
