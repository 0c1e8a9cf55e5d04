"""How do text and conversations become tokens?"""

from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.unit.llm.engine import tiny
from wherry.llm.engine.tokenizer import Tokenizer, truncated

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", ["tokenize", "messages", "tools", "chat_template"])
def test_a_request_cannot_bring_a_template_of_its_own(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(wherry.InvalidRequest, match=f"'{name}' is not for a request to set"):
        tokenizer.encode_chat(HELLO, options={name: "{{ 1 / 0 }}"})


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% if",
    ],
)
def test_a_checkpoint_s_template_is_bounded_in_what_it_may_do(hostile: str) -> None:
    inner = tiny.tokenizer()
    inner.chat_template = hostile
    with pytest.raises(wherry.InvalidRequest, match="template"):
        Tokenizer(inner).encode_chat(HELLO)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (b"{% for m in messages %}", "chat_template: line 1: "),
        (b"a\nb {{ messages | nosuch }}", "chat_template: line 2: "),
        (b"{{ " + b"(" * 5000 + b" }}", "chat_template: RecursionError"),
        (b"\xff\xfe", "UnicodeDecodeError"),
    ],
)
def test_a_template_that_is_none_is_refused_when_it_is_loaded(
    template: bytes, said: str, tmp_path: Path
) -> None:
    tiny.tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(template)
    with pytest.raises(wherry.ConfigError, match=said):
        Tokenizer.load(tmp_path)


def test_a_template_may_refuse_a_conversation_and_have_tags_of_transformers(tmp_path: Path) -> None:
    tiny.tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.content | tojson }}{% endgeneration %}"
        "{% if m.role not in [] %}{% continue %}{% endif %}{% endfor %}{{ raise_exception('no') }}"
    )
    assert Tokenizer.load(tmp_path).has_chat_template


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
