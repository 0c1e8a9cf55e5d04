from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import served
from wherry.core.models.model import Device
from wherry.core.models.step_model import Step, StepModel
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.llm.engine import vllm_backend
from wherry.llm.engine.constraint import AnswerForm
from wherry.llm.engine.delta import Delta
from wherry.llm.engine.vllm_backend import (
    engine_arguments,
    logprobs_of,
    parameters_text,
    sampling_of,
)
from wherry.triton.backends.load import backend_for
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonParameter


def test_parameters_have_vllms_names_and_defaults() -> None:
    found = sampling_of(
        {
            "temperature": 0.5,
            "top_k": -1,
            "stop": "###",
            "include_stop_str_in_output": True,
            "lora_name": "french",
            "best_of": None,
            "use_beam_search": False,
        },
        "m",
    )
    assert (found.temperature, found.top_k, found.stop) == (0.5, 0, ("###",))
    assert (found.include_stop, found.adapter) == (True, "french")
    assert found.max_tokens == 16
    assert sampling_of({"max_tokens": 5}, "m").max_tokens == 5


def test_values_may_be_text_as_the_parameters_of_a_request_are() -> None:
    given = {"temperature": "0", "max_tokens": "7", "ignore_eos": "true", "stop_token_ids": "[1]"}
    found = sampling_of(given, "m")
    assert (found.temperature, found.max_tokens, found.ignore_eos) == (0.0, 7, True)
    assert found.stop_token_ids == (1,)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"json": {"type": "object"}}, AnswerForm(json_schema={"type": "object"})),
        ('{"json": "{}"}', AnswerForm(json_schema={})),
        ({"choice": ["a", "b"]}, AnswerForm(choice=("a", "b"))),
        ({"regex": "a+", "grammar": None}, AnswerForm(regex="a+")),
        ({"json_object": True}, AnswerForm(json_object=True)),
    ],
)
@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_a_form_of_the_answer_is_a_constraint(name: str, form: Any, expected: AnswerForm) -> None:
    assert sampling_of({name: form}, "m").constraint == expected


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temprature": 1}, "temprature"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": "true"}, "use_beam_search"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"structured_outputs": "{"}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_decoding": 3}, "guided_decoding"),
        ({"stop_token_ids": "one"}, "stop_token_ids"),
    ],
)
def test_what_cannot_be_sampled_is_refused_by_its_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"model 'm': {field}: ") as caught:
        sampling_of(given, "m")
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_sampling_parameters_are_an_object(text: str) -> None:
    with pytest.raises(InvalidRequest, match="model 'm': sampling_parameters: it "):
        parameters_text(text, "m")


def test_arguments_of_vllm_alone_are_told_apart() -> None:
    given = {"model": "a/b", "max_model_len": 512, "dtype": "float16", "enforce_eager": True}
    assert engine_arguments(given) == (
        {"context_tokens": 512, "dtype": "float16"},
        ["enforce_eager"],
    )


def test_log_probabilities_are_by_token_with_their_rank() -> None:
    def token(number: int, logprob: float) -> dict[str, Any]:
        return {"id": number, "logprob": logprob, "token": str(number), "bytes": []}

    entry = {**token(7, -2.0), "top": [token(3, -0.5), token(7, -2.0)]}
    assert logprobs_of([entry]) == [
        {
            "7": {"logprob": -2.0, "rank": 2, "decoded_token": "7"},
            "3": {"logprob": -0.5, "rank": 1, "decoded_token": "3"},
        }
    ]


def test_a_model_json_of_a_repository_runs_by_wherrys_engine(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    arguments = {"model": str(checkpoint("llama")), "max_model_len": 64, "enforce_eager": True}
    (tmp_path / "1" / "model.json").write_text(json.dumps(arguments))
    own = {"ENGINE": TritonParameter(string_value="wherry")}
    model = backend_for(str(tmp_path), "1", TritonConfig(name="m", backend="vllm", parameters=own))
    asked = [b'{"temperature": 0, "max_tokens": 4, "ignore_eos": true}']
    with wherry.Runtime(model) as runtime:
        (whole,) = runtime.stream("m", text_input=[b"Once"], sampling_parameters=asked)
        pieces = runtime.stream(
            "m", text_input=[b"Once"], sampling_parameters=asked, stream=np.array([True])
        )
        text = b"".join(piece["text_output"][0] for piece in pieces)

    assert text
    assert whole["text_output"] == [b"Once" + text]


YES = np.array([True])


class Words(StepModel):
    """An engine that answers each prompt with its words, one in a step, and twice with n = 2."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def load(self, device: Device) -> None:
        pass

    def start(self, prompt: str, parameters: Any, stream: bool) -> dict[str, Any]:
        words = [f" {word}" for word in prompt.split()][: parameters.max_tokens]
        return {"words": words, "n": parameters.n, "stream": stream, "all": len(words)}

    def step(self, active: list[dict[str, Any]]) -> list[Step[Delta]]:
        return [self._step(one) for one in active]

    def _step(self, state: dict[str, Any]) -> Step[Delta]:
        word, *state["words"] = state["words"]
        done = not state["words"]
        usage = {"prompt_tokens": 9} if done else {}
        token = {"id": 1, "token": word, "logprob": -0.5, "top": []}
        return Step(
            [
                Delta(place, word, [1], "stop" if done else "", [token], usage)
                for place in range(state["n"])
            ],
            done,
        )


def folder_with(path: Path, arguments: Any) -> str:
    (path / "1").mkdir(exist_ok=True)
    (path / "1" / "model.json").write_text(json.dumps(arguments))
    return str(path)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Words:
    words = Words()

    def engine_of(checkpoint: str, **given: Any) -> tuple[StepModel, str]:
        words.made = {"checkpoint": checkpoint, **given}
        return words, "wherry"

    monkeypatch.setattr(vllm_backend, "engine_of", engine_of)
    return words


@pytest.fixture
def runtime(tmp_path: Path, engine: Words) -> Iterator[wherry.Runtime]:
    folder = folder_with(tmp_path, {"model": "a/b", "max_num_seqs": 2})
    model = backend_for(folder, "1", TritonConfig(name="m", backend="vllm"))
    with wherry.Runtime(model) as runtime:
        yield runtime


def texts(responses: Any) -> list[list[bytes]]:
    return [list(response["text_output"]) for response in responses]


def test_the_configuration_is_that_of_tritons_backend(tmp_path: Path) -> None:
    own = TritonConfig(
        name="m",
        backend="vllm",
        max_batch_size=8,
        input=[TritonInput(name="text_input", data_type="TYPE_STRING", dims=[1])],
    )
    made = backend_for(folder_with(tmp_path, {"model": "a/b"}), "1", own).triton

    assert made.max_batch_size == 0
    assert made.model_transaction_policy is not None
    assert made.model_transaction_policy.decoupled
    assert [one.name for one in made.input][:4] == [
        "text_input",
        "image",
        "stream",
        "sampling_parameters",
    ]
    assert [one.name for one in made.output][:2] == ["text_output", "finish_reason"]


def test_without_streaming_the_answer_follows_its_prompt(runtime: wherry.Runtime) -> None:
    found = texts(runtime.stream("m", text_input=[b"one two"]))
    assert found == [[b"one two one two"]]
    found = texts(runtime.stream("m", text_input=[b"one two"], exclude_input_in_output=YES))
    assert found == [[b" one two"]]


def test_a_stream_sends_each_piece(runtime: wherry.Runtime) -> None:
    assert texts(runtime.stream("m", text_input=[b"one two"], stream=YES)) == [[b" one"], [b" two"]]


def test_several_answers_are_in_one_response(runtime: wherry.Runtime) -> None:
    found = runtime.stream("m", text_input=[b"a b"], sampling_parameters=[b'{"n": 2}'])
    assert texts(found) == [[b"a b a b", b"a b a b"]]


def test_further_outputs_are_there_if_they_are_asked_for(runtime: wherry.Runtime) -> None:
    wanted: dict[str, Any] = {
        f"return_{name}": YES
        for name in ("finish_reason", "cumulative_logprob", "num_input_tokens", "logprobs")
    }
    (found,) = runtime.stream("m", text_input=[b"a b"], return_num_output_tokens=YES, **wanted)
    assert list(found["finish_reason"]) == [b"stop"]
    assert found["cumulative_logprob"].tolist() == [-1.0]
    assert found["num_input_tokens"].tolist() == [9]
    assert found["num_output_tokens"].tolist() == [2]
    assert [set(one) for one in json.loads(found["logprobs"][0])] == [{"1"}, {"1"}]
    first, last = runtime.stream("m", text_input=[b"a b"], stream=YES, return_finish_reason=YES)
    assert (first["finish_reason"], last["finish_reason"]) == ([b"None"], [b"stop"])
    assert "logprobs" not in first


def test_a_request_has_its_parameters_beside_its_inputs(tmp_path: Path, engine: Words) -> None:
    folder = folder_with(tmp_path, {"model": "a/b"})
    with served(backend_for(folder, "1", TritonConfig(name="m", backend="vllm"))) as client:
        body = {"text_input": "a b c", "parameters": {"stream": False, "max_tokens": 2}}
        answer = client.post("/v2/models/m/generate", body)

    assert answer.status == 200
    assert answer.json["text_output"] == "a b c a b"


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ({"stream": YES, "exclude_input_in_output": ~YES}, "exclude_input_in_output"),
        ({"image": [b"x"]}, "image"),
        ({"sampling_parameters": [b"{"]}, "sampling_parameters"),
        ({"sampling_parameters": [b'{"best_of": 2}']}, "best_of"),
        ({"sampling_parameters": [b"\xff"]}, "sampling_parameters"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(
    runtime: wherry.Runtime, inputs: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"model 'm': {field}: ") as caught:
        list(runtime.stream("m", text_input=[b"a"], **inputs))
    assert caught.value.field == field


def test_the_engine_gets_its_arguments(tmp_path: Path, engine: Words) -> None:
    folder = folder_with(
        tmp_path,
        {"model": "mine", "max_model_len": 99, "enable_lora": "true", "swap_space": 1},
    )
    (tmp_path / "1" / "mine").mkdir()
    (tmp_path / "1" / "multi_lora.json").write_text('{"french": "/adapters/french"}')
    model = backend_for(folder, "1", TritonConfig(name="m", backend="vllm"))
    with wherry.Runtime(model):
        pass

    assert engine.made["checkpoint"] == str(tmp_path / "1" / "mine")
    assert engine.made["ours"] == {
        "context_tokens": 99,
        "adapters": {"french": "/adapters/french"},
    }
    assert engine.made["vllm"]["swap_space"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "it must name the checkpoint"),
        ([], "it must be a JSON object"),
        ({"model": ""}, "it must name the checkpoint"),
    ],
)
def test_a_model_json_without_a_checkpoint_is_refused(
    tmp_path: Path, arguments: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        backend_for(folder_with(tmp_path, arguments), "1", TritonConfig(name="m", backend="vllm"))


def test_a_version_without_a_model_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(ConfigError, match=r"version 1: model\.json: No such file"):
        backend_for(str(tmp_path), "1", TritonConfig(name="m", backend="vllm"))
