from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.values.errors import InvalidRequest
from wherry.llm.engine.constraint import AnswerForm
from wherry.llm.engine.vllm_words import engine_arguments, logprobs_of, parameters_text, sampling_of
from wherry.triton.backends.load import backend_for
from wherry.triton.repository.triton_config import TritonConfig, TritonParameter


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
