"""How does vLLM serve behind the same front? Its fields are mapped; the engine here is a fake.

vLLM needs a GPU that these tests do not have: what they hold is what is said to it, by the names
of its documentation, and what becomes of its answers.
"""

import enum
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import wherry
from wherry.llm.vllm_engine import VLLM


@dataclass
class Output:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[dict[int, Any]] | None = None


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[Output]
    finished: bool = False
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    num_cached_tokens: int | None = 1


@dataclass
class Logprob:
    logprob: float
    decoded_token: str


class Kind(enum.Enum):
    DELTA = 1


class Tokenizer:
    def apply_chat_template(self, messages: list[Any], **options: Any) -> str:
        assert options["tokenize"] is False
        return "|".join(message["content"] for message in messages)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]


class Engine:
    """Each request gets "Hel", then "lo", for each of its n answers."""

    made: "list[Engine]" = []  # noqa: RUF012

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.added: list[tuple[Any, Any]] = []
        self.aborted: list[str] = []
        self.running: dict[str, int] = {}
        Engine.made.append(self)

    @classmethod
    def from_engine_args(cls, arguments: Any) -> "Engine":
        return cls(arguments)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        if params.max_tokens == 13:
            raise ValueError("13 is unlucky")
        self.added.append((prompt, params))
        self.running[request_id] = 0

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        came = []
        for request_id in list(self.running):
            self.running[request_id] += 1
            endless = self.added[-1][1].max_tokens == 99
            last = self.running[request_id] == 2 and not endless
            text, token = ("lo", 8) if last else ("Hel", 7)
            logprobs = [{token: Logprob(-0.5, text), 5: Logprob(-0.1, "x")}]
            outputs = [
                Output(n, text, [token], "stop" if last else None, logprobs)
                for n in range(self.added[-1][1].n)
            ]
            came.append(RequestOutput(request_id, outputs, last))
            if last:
                del self.running[request_id]
        return came


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[wherry.Runtime]:
    fake: Any = types.ModuleType("vllm")
    fake.LLMEngine = Engine
    fake.EngineArgs = fake.SamplingParams = types.SimpleNamespace
    fake.sampling_params = types.SimpleNamespace(
        RequestOutputKind=Kind, StructuredOutputsParams=types.SimpleNamespace
    )
    monkeypatch.setitem(sys.modules, "vllm", fake)
    with wherry.Runtime(VLLM("org/chat", max_running=4, max_model_len=512)) as runtime:
        yield runtime


def deltas(runtime: wherry.Runtime, **inputs: Any) -> list[dict[str, Any]]:
    return list(runtime.stream("chat", **inputs))


def test_its_pieces_are_an_llms(runtime: wherry.Runtime) -> None:
    found = deltas(runtime, prompt="Hi", parameters={"logprobs": 1})
    assert [delta["text"] for delta in found] == ["Hel", "lo"]
    assert [delta["token_ids"].tolist() for delta in found] == [[7], [8]]
    assert [delta["finish_reason"] for delta in found] == ["", "stop"]
    assert [delta["usage"] for delta in found] == [
        {},
        {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1},
    ]
    (said,) = found[0]["logprobs"]
    assert (said["token"], said["id"], said["bytes"]) == ("Hel", 7, [72, 101, 108])
    assert [top["token"] for top in said["top"]] == ["x", "Hel"]


def test_whole_answers_are_one_piece_each(runtime: wherry.Runtime) -> None:
    found = deltas(runtime, prompt="Hi", parameters={"n": 2}, stream=False)
    assert [(delta["index"], delta["text"]) for delta in found] == [(0, "Hello"), (1, "Hello")]
    assert found[-1]["usage"]["completion_tokens"] == 4


def test_wishes_go_to_vllm_by_its_own_names(runtime: wherry.Runtime) -> None:
    wishes = {
        "max_tokens": 5, "temperature": 0.5, "top_k": 3, "stop": ["x"], "logit_bias": {"7": 1.5},
        "include_stop": True, "seed": 4, "constraint": {"choice": ["a", "b"]},
    }  # fmt: skip
    deltas(runtime, messages=[{"role": "user", "content": "Hi"}], parameters=wishes)
    engine = Engine.made[-1]
    prompt, sent = engine.added[-1]
    assert prompt == {"prompt_token_ids": [72, 105]}
    assert (sent.max_tokens, sent.temperature, sent.top_k, sent.seed) == (5, 0.5, 3, 4)
    assert (sent.stop, sent.logit_bias) == (["x"], {7: 1.5})
    assert sent.include_stop_str_in_output is True
    assert vars(sent.structured_outputs) == {"choice": ["a", "b"]}
    assert sent.output_kind is Kind.DELTA
    assert vars(engine.arguments) == {
        "model": "org/chat", "max_num_seqs": 4, "max_model_len": 512
    }  # fmt: skip


def test_tokens_go_as_they_are(runtime: wherry.Runtime) -> None:
    deltas(runtime, token_ids=[4, 5])
    assert Engine.made[-1].added[-1][0] == {"prompt_token_ids": [4, 5]}


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"prompt": "a", "parameters": {"max_tokens": 13}}, "13 is unlucky"),
        ({}, "give one of"),
        (
            {"messages": [{"role": "user", "content": "a"}], "template": {"chat_template": "x"}},
            "not for a request to set",
        ),
    ],
)
def test_what_it_refuses_is_the_callers_fault(
    runtime: wherry.Runtime, inputs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(wherry.InvalidRequest, match=problem):
        deltas(runtime, **inputs)


def test_one_who_leaves_is_aborted(runtime: wherry.Runtime) -> None:
    stream = runtime.stream("chat", prompt="a", parameters={"max_tokens": 99})
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    deltas(runtime, prompt="b")  # after it, the step in which the first left is over
    assert len(Engine.made[-1].aborted) == 1
