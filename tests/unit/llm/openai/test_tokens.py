"""How does a client count a text's tokens, or read tokens, without anything being generated?"""

from __future__ import annotations

import msgspec
import numpy as np

from wherry.llm.openai.generation import ChoiceDelta
from wherry.llm.openai.tokens import PromptAnswer, TokensAnswer


def test_tokens_come_with_their_number_and_the_room_there_is() -> None:
    answer = TokensAnswer("m", "x")
    tokens = np.array([3, 1, 2])
    usage = {"prompt_tokens": 3, "context_tokens": 256}
    piece = ChoiceDelta(0, "", "stop", usage=usage, token_ids=tokens)  # type: ignore[arg-type]
    assert answer.add(piece) + answer.end() == []
    assert msgspec.to_builtins(answer.whole()) == {
        "count": 3, "max_model_len": 256, "tokens": [3, 1, 2], "token_strs": None
    }  # fmt: skip


def test_a_text_is_a_prompt() -> None:
    answer = PromptAnswer("m", "x")
    assert answer.add(ChoiceDelta(0, "Hi", "stop")) + answer.end() == []
    assert msgspec.to_builtins(answer.whole()) == {"prompt": "Hi"}
