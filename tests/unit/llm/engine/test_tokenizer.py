"""How do text and conversations become tokens?"""

from typing import Any

import pytest

import wherry
from tests.unit.llm.engine import tiny
from wherry.llm.engine.tokenizer import MOST_TEMPLATE_CHARACTERS, Tokenizer, truncated

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", ["tokenize", "messages", "tools"])
def test_a_request_cannot_bring_a_template_of_its_own(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(wherry.InvalidRequest, match=f"'{name}' is not for a request to set"):
        tokenizer.encode_chat(HELLO, options={name: "{{ 1 / 0 }}"})


def test_a_template_of_a_request_is_run_only_where_that_is_trusted(tokenizer: Tokenizer) -> None:
    own = {"chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}"}
    with pytest.raises(wherry.InvalidRequest, match="takes no template") as refused:
        tokenizer.encode_chat(HELLO, options=own)
    assert refused.value.field == "chat_template"
    tokenizer.trusts_templates = True
    try:
        assert tokenizer.decode(tokenizer.encode_chat(HELLO, options=own)) == "[hi]"
        for hostile in (
            "x" * (MOST_TEMPLATE_CHARACTERS + 1),
            "{{ ''.__class__.__mro__ }}",
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "{% if",
        ):
            with pytest.raises(wherry.InvalidRequest, match="template"):
                tokenizer.encode_chat(HELLO, options={"chat_template": hostile})
    finally:
        tokenizer.trusts_templates = False


@pytest.mark.parametrize("side", ["left", "right"])
def test_of_a_long_text_a_part_is_kept_though_all_of_it_is_too_long(
    tokenizer: Tokenizer, side: str
) -> None:
    short = Tokenizer(tokenizer.inner, most_tokens=20)
    text = "".join(chr(97 + place % 26) for place in range(50_000))
    whole = tokenizer.encode(text)
    found = truncated(short.encode(text, keep=7, side=side), 7, side)
    assert found == (whole[:7] if side == "right" else whole[-7:])
    with pytest.raises(wherry.InvalidRequest, match="Unicode"):
        short.encode("\ud800", keep=3)


def test_whatever_a_template_raises_is_the_fault_of_the_messages(tokenizer: Tokenizer) -> None:
    tokenizer.inner.chat_template = "{{ 1 // divisor }}"
    variables: dict[str, Any] = {"divisor": 0}
    with pytest.raises(wherry.InvalidRequest, match=r"refuses these messages: .*zero"):
        tokenizer.encode_chat(HELLO, options=variables)
