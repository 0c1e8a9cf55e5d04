"""What can one client make a language model spend on a question?"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import wherry
from tests.costs import assert_linear
from tests.unit.llm.engine.choices import sample
from wherry.core.values.errors import InvalidRequest, PromptTooLong
from wherry.llm import LLM
from wherry.llm.engine.chat_form import MOST_LINES, limited
from wherry.llm.engine.constraint import AnswerForm
from wherry.llm.engine.delta import Reports
from wherry.llm.engine.engine import MOST_COPIED_TOKENS, Engine
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.prompt import SHORT_CHARACTERS
from wherry.llm.engine.request import StopTexts
from wherry.llm.engine.sampling import (
    MOST_LOGPROBS,
    MOST_STOP_CHARACTERS,
    MOST_TOKENS_NAMED,
    Parameters,
    Sampling,
    bounded,
)
from wherry.llm.engine.sequence import Sequence
from wherry.llm.engine.tokenizer import PART, Tokenizer

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def tokenizer(checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(checkpoint("llama"), most_tokens=20_000)


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Iterator[LLM]:
    model = LLM(checkpoint("llama"), name="tiny", cache_gb=0.01, threads=1)
    model.load(wherry.Device("cpu"))
    yield model
    model.unload()


TOO_MUCH: dict[str, Any] = {
    "n": 10**6,
    "top_k": 10**30,
    "stop": ("x" * (MOST_STOP_CHARACTERS // 2 + 1),) * 2,
    "stop_token_ids": (1,) * (MOST_TOKENS_NAMED + 1),
    "logit_bias": dict.fromkeys(range(MOST_TOKENS_NAMED + 1), 1.0),
    "temperature": float("nan"),
    "repetition_penalty": 1e-300,
    "min_p": float("inf"),
    "seed": 10**30,
    "max_tokens": -1,
}


@pytest.mark.parametrize("field", TOO_MUCH)
def test_a_wish_that_is_too_large_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"model 'm': {field} must be") as refused:
        Sampling(**{field: TOO_MUCH[field]}).checked("m", 100_000)
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


def test_more_log_probabilities_than_there_may_be_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="logprobs"):
        msgspec.convert({"logprobs": 21}, Sampling)


@pytest.mark.parametrize(
    ("asked", "tokens", "kept"),
    [
        ({"max_tokens": 100, "n": 64, "logprobs": 20}, 10, 100),
        ({"max_tokens": 800, "n": 64, "logprobs": 20}, 10, "logprobs"),
        ({"max_tokens": 800, "n": 64}, 10, 800),
        ({"max_tokens": 60_000, "logprobs": 20}, 10, "logprobs"),
        ({"n": 64, "logprobs": 20}, 10, MOST_LOGPROBS // (64 * 21)),
        ({"n": 64, "logprobs": 20, "max_tokens": 5, "clip_max_tokens": True}, 10, 5),
        ({}, 10, None),
        ({"prompt_logprobs": 20, "max_tokens": 1}, 40_000, 1),
        ({"prompt_logprobs": 20, "max_tokens": 1}, 60_000, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "max_tokens": 0}, 40_000, 0),
        ({"echo": True, "logprobs": 20, "max_tokens": 0, "n": 2}, 40_000, "logprobs"),
    ],
)  # fmt: skip
def test_log_probabilities_of_an_answer_are_bounded_before_it_is_generated(
    asked: dict[str, Any], tokens: int, kept: int | str | None
) -> None:
    if isinstance(kept, str):
        with pytest.raises(InvalidRequest, match=str(MOST_LOGPROBS)) as refused:
            bounded("m", Sampling(**asked), tokens)
        assert refused.value.field == kept
    else:
        assert bounded("m", Sampling(**asked), tokens).max_tokens == kept


def test_an_answer_of_too_many_log_probabilities_is_refused_without_a_step(
    model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherry.llm.engine.sampling.MOST_LOGPROBS", 500)
    wish = Parameters(n=4, max_tokens=30, logprobs=4)
    with pytest.raises(InvalidRequest, match="at most 500 log probabilities"):
        model.start(prompt="x", parameters=wish)
    assert not model.engine.busy
    free = model.start(prompt="x", parameters=Parameters(n=4, logprobs=4, ignore_eos=True))
    while not (step := model.step([free])[0]).done:
        assert step.error is None
    assert {answer.sequence.generated_tokens for answer in free.answers or ()} == {25}


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 5}, {"echo": True, "logprobs": 5, "n": 2}])
def test_a_step_describes_what_it_has_computed_of_a_prompt(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    described: list[int] = []
    for name in ("ranked", "token"):
        plain = getattr(Reports, name)

        def counted(*given: Any, plain: Any = plain) -> Any:
            described.append(given[1].token)
            return plain(*given)

        monkeypatch.setattr(Reports, name, counted)
    model = LLM(checkpoint("llama"), name="m", cache_gb=0.01, threads=1, max_step_tokens=32)
    model.load(wherry.Device("cpu"))
    tokens = [1 + place % 200 for place in range(150)]
    wish = Parameters(max_tokens=2, ignore_eos=True, **asked)
    request = model.start(token_ids=tokens, parameters=wish, stream=False)
    while not (step := model.step([request])[0]).done:
        assert len(described[:149]) == min(149, model.gauges()["prompt_tokens_total"])
    assert described[:149] == tokens[1:]
    first, *further = step.responses
    for delta in (first, *further) if "echo" in asked else ():
        assert [one["id"] for one in delta.logprobs[:150]] == tokens
    if "echo" not in asked:
        assert [int(next(iter(one))) for one in first.details["prompt_logprobs"][1:]] == tokens[1:]
    model.unload()


def test_answers_to_a_long_prompt_are_few(model: LLM) -> None:
    engine = Engine(lambda _: torch.zeros(0), KVCache(1 << 16, 16), name="m", vocabulary=300,
                    context_tokens=1 << 20)  # fmt: skip
    prompt = [7] * (MOST_COPIED_TOKENS // 4)
    with pytest.raises(InvalidRequest, match="n must be at most 4 for a prompt of 262144 tokens"):
        engine.add(prompt, Sampling(n=5))
    assert len(engine.add(prompt, Sampling(n=1))) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-4])
def test_the_coldest_draw_is_the_most_probable_token(temperature: float) -> None:
    sequence = Sequence(1, [5], 1, Sampling(temperature=temperature, seed=3))
    logits = torch.tensor([[1.0, 3.0, 2.9, -5.0]])
    assert [s.token for s in sample(logits, [sequence])] == [1]


STOPS: dict[str, Callable[[int], tuple[str, ...]]] = {
    "one": lambda n: ("a" * (n - 1) + "b",),
    "many": lambda n: tuple("a" * k + "b" for k in range(1, int(n**0.5))),
}


@pytest.mark.parametrize("shape", STOPS)
def test_the_longest_stops_cost_each_token_the_same(shape: str) -> None:
    stops = StopTexts(STOPS[shape](MOST_STOP_CHARACTERS))

    def push(count: int) -> None:
        for _ in range(count):
            stops.push("a")

    assert_linear(push, lambda count: count)


# The chat template: the checkpoint's own program

LOOPS = {
    "nested": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "with text": "{% for i in range(99999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive": "{% for i in [[]] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "filters": "{% for i in range(9999) %}"
    "{% for j in range(9999)|select %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_template_that_does_not_end_is_ended(tokenizer: Tokenizer, loop: str) -> None:
    tokenizer.inner.chat_template = LOOPS[loop]
    before = sys.gettrace()
    with pytest.raises(InvalidRequest, match="the chat template refuses these messages"):
        tokenizer.encode_chat(HELLO)
    assert sys.gettrace() is before


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{",
    ],
)
def test_a_template_stays_in_its_sandbox(tokenizer: Tokenizer, template: str) -> None:
    tokenizer.inner.chat_template = template
    with pytest.raises(InvalidRequest, match="the chat template refuses") as refused:
        tokenizer.encode_chat(HELLO)
    assert len(str(refused.value)) < 600


def test_a_long_conversation_is_far_from_the_limit(tokenizer: Tokenizer) -> None:
    with limited(MOST_LINES // 10):
        text = tokenizer.inner.apply_chat_template(HELLO * 1000, tokenize=False)
    assert len(tokenizer.encode(text)) == 4000


# Long texts

SHAPES = ["a", " ", "\n", "1", "!", "é", "中", "a1 ", "a\u0301", "<|user|>", "<|", "\t ", " word1"]


@pytest.mark.parametrize("shape", SHAPES)
def test_tokenizing_costs_what_the_text_is_long(
    checkpoint: Callable[..., Path], shape: str
) -> None:
    tokenizer = Tokenizer.load(checkpoint("llama"))
    assert_linear(tokenizer.encode, lambda n: (shape * n)[:n], smallest=4096, largest=1 << 18)


def test_a_text_that_is_far_too_long_is_refused_after_a_part_of_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encode = tokenizer.inner.encode

    def watched(text: str, **options: Any) -> list[int]:
        seen.append(len(text))
        made: list[int] = encode(text, **options)
        return made

    monkeypatch.setattr(tokenizer.inner, "encode", watched)
    with pytest.raises(PromptTooLong, match="more than 40000 tokens"):
        tokenizer.encode("a" * 250_000)
    assert sum(seen) < 40_000 + 2 * PART
    seen.clear()
    with pytest.raises(PromptTooLong, match="characters, more than"):
        tokenizer.encode("a" * 10_000_000)
    assert seen == []


def test_a_long_text_that_fits_is_tokenized_as_a_whole(tokenizer: Tokenizer) -> None:
    text = " word1" * 15_000
    assert len(text) > 2 * 20_000
    assert len(tokenizer.encode(text)) == 15_000


@pytest.mark.parametrize(
    "question",
    [
        {"prompt": "a" * (SHORT_CHARACTERS + 1)},
        {"messages": [{"role": "user", "content": "a" * (SHORT_CHARACTERS + 1)}]},
        {"prompt": "a" * (SHORT_CHARACTERS + 1), "task": "tokenize"},
    ],
    ids=["prompt", "messages", "tokenize"],
)
def test_others_go_on_while_a_long_question_is_read(
    model: LLM, monkeypatch: pytest.MonkeyPatch, question: dict[str, Any]
) -> None:
    may_end = threading.Event()
    read = model._prompts.read

    def slow(prompt: Any) -> Any:
        if not prompt.is_short:
            may_end.wait()
        return read(prompt)

    monkeypatch.setattr(model._prompts, "read", slow)
    other = model.start(prompt="y", parameters=Sampling(ignore_eos=True))
    long = model.start(**question)
    made = [delta for _ in range(20) for delta in model.step([other, long])[0].responses]
    assert sum(len(delta.token_ids) for delta in made) > 5
    assert long.answers is None
    may_end.set()
    assert long.reading is not None
    long.reading.exception()
    (_, step) = model.step([other, long])
    assert step.error is not None or step.done
    model.stop(other)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "wanted",
    [
        AnswerForm(json_schema=deep(900)),
        AnswerForm(json_schema={"properties": {"a": {}}, "required": [["a"]]}),
        AnswerForm(json_schema={"properties": {1: 2}}),
        AnswerForm(regex="(" * 5000),
        AnswerForm(regex="a?" * 3000 + "a" * 3000),
        AnswerForm(grammar="start: start"),
        AnswerForm(grammar="\x00"),
        AnswerForm(choice=()),
        AnswerForm(choice=("x" * 200_000,)),
    ],
)
def test_a_form_that_cannot_be_read_ends_only_its_own_request(
    model: LLM, wanted: AnswerForm
) -> None:
    other = model.start(prompt="y", parameters=Sampling(ignore_eos=True))
    try:
        held = model.start(prompt="x", parameters=Sampling(constraint=wanted, max_tokens=3))
    except InvalidRequest as error:
        assert "constraint" in str(error)  # noqa: PT017 - it may come at once, or with a step
    else:
        while not ((step := model.step([other, held])[1]).done or step.error):
            pass
    assert model.step([other])[0].error is None
    model.stop(other)
