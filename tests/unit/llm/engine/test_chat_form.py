"""Which form of a conversation does a chat template get?"""

from __future__ import annotations

from typing import Any

import pytest

import wherry
from tests.unit.llm.engine import tiny
from wherry.llm.engine.tokenizer import Tokenizer

EACH = "{% for m in messages %}<{{ m.role }}>"
END = "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
CALLS = "{% for c in m.tool_calls %}[{{ c.function.name }} ARGUMENTS]{% endfor %}"
ITEMS = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
PARTS = "{% for p in m['content'] %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"

TEMPLATES = {
    "text": EACH + "{{ m.content }}" + END,
    # Llama Guard 3's, of which a text has nothing to read
    "parts": EACH + PARTS + END,
    "first-part": EACH + "{{ m.content[0].text }}" + END,
    # Llama 3.2's: either
    "both": EACH
    + "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}" + END,
    # parts of the user alone
    "mixed": EACH
    + "{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}" + END,
    # Llama 3.1's: calls are there or not, and contents of tools that are lists are printed
    "llama": EACH
    + "{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('only one call') }}{% endif %}"
    + CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    + "{% elif m.role == 'tool' %}{{ m.content | tojson }}"
    "{% else %}{{ m.content | trim }}{% endif %}" + END,
    # DeepSeek's: arguments are texts
    "deepseek": EACH
    + "{% if m.content is not none %}{{ m.content }}{% endif %}"
    + CALLS.replace("ARGUMENTS", "{{ '`' + c.function.arguments + '`' }}")
    + END,
    # MiniMax's: arguments are objects
    "items": EACH
    + "{{ m.content or '' }}"
    + CALLS.replace("ARGUMENTS", ITEMS)
    + END,
    # Mistral's: roles alternate, ids have nine letters
    "mistral": EACH
    + "{% if m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'user' %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}"
    + "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('9') }}{% endif %}"
    "[{{ c.function.arguments | tojson }}]{% endfor %}" + END,
    "null": EACH + "{% if m.content is none %}NULL{% elif m.content is undefined %}ABSENT"
    "{% else %}{{ m.content }}{% endif %}" + END,
}  # fmt: skip


@pytest.fixture(scope="module")
def inner() -> Any:
    return tiny.tokenizer()


def shown(inner: Any, template: str, *messages: dict[str, Any]) -> str:
    inner.chat_template = TEMPLATES[template]
    words = Tokenizer(inner)
    return words.decode(words.encode_chat(messages), skip_special=False)


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a" * 9, "function": function}], **more}


@pytest.mark.parametrize("template", ["text", "parts", "first-part", "both", "mixed", "llama"])
def test_a_template_reads_what_is_said_in_whatever_form_it_was_sent(
    inner: Any, template: str
) -> None:
    texts = [("system", "be"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    for form in (str, parts):
        talk = [said(role, form(text)) for role, text in texts]
        assert shown(inner, template, *talk) == "<system>be<user>a<assistant>b<user>c<assistant>"
    tool = [said("user", "a"), called({}, content=""), said("tool", parts("r"))]
    assert shown(inner, template, *tool).endswith(
        '<tool>"r"<assistant>' if template == "llama" else "<tool>r<assistant>"
    )


@pytest.mark.parametrize(
    ("template", "read"),
    [("text", "a\nb"), ("first-part", "a\nb"), ("parts", "ab"), ("both", "ab"), ("mixed", "ab")],
)
def test_several_parts_stay_apart_where_a_template_takes_them(
    inner: Any, template: str, read: str
) -> None:
    assert shown(inner, template, said("user", parts("a", "b"))) == f"<user>{read}<assistant>"


def test_what_a_template_takes_is_given_as_transformers_would(inner: Any) -> None:
    part = {"type": "text", "text": "a", "note": None}
    inner.chat_template = EACH + "{% if m.content is string %}{{ m.content }}{% else %}" + (
        "{% for p in m.content %}{{ p.text }}{{ p | length }}{% endfor %}{% endif %}"
        "{% if 'name' in m %}({{ m.name }}){% endif %}" + END
    )  # fmt: skip
    talk = [said("user", [part], name=None), said("assistant", "b"), said("user", "c", name="n")]
    theirs = inner.apply_chat_template(talk, tokenize=True, add_generation_prompt=True)
    assert Tokenizer(inner).encode_chat(talk) == list(theirs["input_ids"])


@pytest.mark.parametrize(
    ("template", "arguments", "read"),
    [
        ("llama", {"a": 1}, '{"a": 1}'),
        ("llama", '{"a', '"{\\"a"'),
        ("deepseek", {"a": 1}, '`{"a": 1}`'),
        ("deepseek", '{"a', '`{"a`'),
        ("items", {"a": 1}, "a=1"),
        ("items", '{"a', 'arguments={"a'),
    ],
)
def test_arguments_are_an_object_or_a_text_as_the_template_takes_them(
    inner: Any, template: str, arguments: Any, read: str
) -> None:
    talk = [said("user", "a"), called(arguments, content=None)]
    assert shown(inner, template, *talk) == f"<user>a<assistant>[f {read}]<assistant>"


@pytest.mark.parametrize("template", sorted(TEMPLATES.keys() - {"null"}))
def test_an_answer_without_text_or_calls_says_nothing(inner: Any, template: str) -> None:
    for silent in (said("assistant", None), said("assistant", []), {"role": "assistant"}):
        talk = [said("user", "a"), {**silent, "tool_calls": []}, said("user", "b")]
        assert shown(inner, template, *talk) == "<user>a<assistant><user>b<assistant>"


def test_absent_null_and_empty_are_to_a_template_what_they_are_to_transformers(inner: Any) -> None:
    for one in ({"role": "assistant"}, said("assistant", None), said("assistant", "")):
        talk = [said("user", "a"), one]
        read = shown(inner, "null", *talk)
        assert read == inner.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)


def test_a_template_of_which_nothing_is_known_gets_what_was_sent(inner: Any) -> None:
    inner.chat_template = "{{ raise_exception('never') if messages[0].content != 'x' }}ok"
    assert Tokenizer(inner).decode(Tokenizer(inner).encode_chat([said("user", "x")])) == "ok"
    with pytest.raises(wherry.InvalidRequest, match="never"):
        Tokenizer(inner).encode_chat([said("user", None)])


def test_a_template_is_tried_once(inner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inner.chat_template = TEMPLATES["parts"]
    words, renderings, render = Tokenizer(inner), list[int](), inner.apply_chat_template

    def counted(*given: Any, **options: Any) -> Any:
        renderings.append(1)
        return render(*given, **options)

    monkeypatch.setattr(inner, "apply_chat_template", counted)
    words.encode_chat([said("user", "x")])
    first = len(renderings)
    for _ in range(3):
        words.encode_chat([said("user", "x"), said("user", "y")])
    assert len(renderings) == first + 3
