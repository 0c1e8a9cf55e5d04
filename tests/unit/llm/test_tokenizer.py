"""How do text and conversations become tokens?"""

from typing import Any

import pytest

import wherry
from tests.unit.llm import tiny
from wherry.llm.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools"])
def test_a_request_cannot_bring_a_template_of_its_own(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(wherry.InvalidRequest, match=f"'{name}' is not for a request to set"):
        tokenizer.encode_chat(HELLO, options={name: "{{ 1 / 0 }}"})


def test_whatever_a_template_raises_is_the_fault_of_the_messages(tokenizer: Tokenizer) -> None:
    tokenizer.inner.chat_template = "{{ 1 // divisor }}"
    variables: dict[str, Any] = {"divisor": 0}
    with pytest.raises(wherry.InvalidRequest, match=r"refuses these messages: .*zero"):
        tokenizer.encode_chat(HELLO, options=variables)
