"""How does a client count a text's tokens, or read tokens, without anything being generated?"""

from __future__ import annotations

import msgspec

from wherry.llm.openai.generation import ChoiceDelta
from wherry.llm.openai.tokens import TokenizerAnswer, token_list, tokens_text


def test_tokens_come_with_their_number_and_the_room_there_is() -> None:
    answer = TokenizerAnswer("m", "x", token_list)
    tokens = [3, 1, 2]
    usage = {"prompt_tokens": 3, "context_tokens": 256}
    piece = ChoiceDelta(0, "", "stop", usage=usage, token_ids=tokens)
    assert answer.add(piece) + answer.end() == []
    assert msgspec.to_builtins(answer.whole()) == {
        "count": 3, "max_model_len": 256, "tokens": [3, 1, 2], "token_strs": None
    }  # fmt: skip


def test_a_text_is_a_prompt() -> None:
    answer = TokenizerAnswer("m", "x", tokens_text)
    assert answer.add(ChoiceDelta(0, "Hi", "stop")) + answer.end() == []
    assert msgspec.to_builtins(answer.whole()) == {"prompt": "Hi"}
