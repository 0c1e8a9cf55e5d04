"""How does a model.json of Triton's vLLM backend run, whatever engine is installed?

By vLLM where it is installed, else by the engine that wherry chooses for the checkpoint. Inputs and
outputs are those of the backend: a text, its sampling parameters as JSON or as the request's own
parameters, and whether the answer streams.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    ConfigError,
    Device,
    InvalidRequest,
    ModelConfig,
    Signature,
    Step,
    StepModel,
)
from wherry.llm.engines import engine_of
from wherry.triton.api import (
    RepositoryModel,
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonTransactionPolicy,
    parameter_text,
)

if TYPE_CHECKING:
    from wherry.llm.engine.delta import Delta
from wherry.llm.engine.sampling import Parameters

log = logging.getLogger("wherry")

FILE: Final = "model.json"
ADAPTERS: Final = "multi_lora.json"
#: Most bytes of one of the two.
MAX_FILE_BYTES: Final = 1 << 20

_FLAG: Final[dict[str, Any]] = {"data_type": "TYPE_BOOL", "dims": [1], "optional": True}
_TEXT: Final[dict[str, Any]] = {"data_type": "TYPE_STRING", "optional": True}
INPUTS: Final = (
    TritonInput(name="text_input", data_type="TYPE_STRING", dims=[1]),
    TritonInput(name="image", dims=[-1], **_TEXT),
    TritonInput(name="stream", **_FLAG),
    TritonInput(name="sampling_parameters", dims=[1], **_TEXT),
    TritonInput(name="exclude_input_in_output", **_FLAG),
    TritonInput(name="return_finish_reason", **_FLAG),
    TritonInput(name="return_cumulative_logprob", **_FLAG),
    TritonInput(name="return_logprobs", **_FLAG),
    TritonInput(name="return_num_input_tokens", **_FLAG),
    TritonInput(name="return_num_output_tokens", **_FLAG),
)
OUTPUTS: Final = (
    TritonOutput(name="text_output", data_type="TYPE_STRING", dims=[-1]),
    TritonOutput(name="finish_reason", data_type="TYPE_STRING", dims=[-1]),
    TritonOutput(name="cumulative_logprob", data_type="TYPE_FP32", dims=[-1]),
    TritonOutput(name="logprobs", data_type="TYPE_STRING", dims=[-1]),
    TritonOutput(name="num_input_tokens", data_type="TYPE_UINT32", dims=[1]),
    TritonOutput(name="num_output_tokens", data_type="TYPE_UINT32", dims=[-1]),
)


class VllmBackendModel(RepositoryModel, StepModel):
    takes_parameters = True

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Inputs and outputs of the backend beside those that are there, and no batches: requests
        join and leave the engine by themselves."""
        engine_json(os.path.join(folder, version), config.name)
        names = {one.name for one in config.input} | {one.name for one in config.output}
        return msgspec.structs.replace(
            config,
            max_batch_size=0,
            input=[*config.input, *(one for one in INPUTS if one.name not in names)],
            output=[*config.output, *(one for one in OUTPUTS if one.name not in names)],
            model_transaction_policy=TritonTransactionPolicy(decoupled=True),
        )

    def signature(self, name: str = "") -> Signature:
        """The signature. All outputs but the text are sent only if a request sets them."""
        found = super().signature(name)
        outputs = [replace(one, optional=one.name != "text_output") for one in found.outputs]
        return replace(found, outputs=tuple(outputs))

    def check_signature(self, signature: Signature, config: ModelConfig) -> None:
        """A request is one row, without a batch dimension."""

    def most_active(self, config: ModelConfig, device: Device) -> int:
        arguments = engine_json(self.version_folder, self.triton.name)
        count = arguments.get("max_num_seqs", 64)
        if type(count) is not int or count < 1:
            raise self._wrong(f"max_num_seqs must be a whole number from 1 up, not {count!r}")
        return count

    def load(self, device: Device) -> None:
        self._engine = self._made()
        self._engine.load(device)

    def unload(self) -> None:
        if "_engine" in self.__dict__:
            self._engine.unload()

    def start(self, **inputs: Any) -> _Answering:
        """Add a request, whose inputs are those of the backend and its own parameters."""
        vllm_request = VllmRequest.of(inputs, self.triton.name)
        state = self._engine.start(
            prompt=vllm_request.prompt, parameters=vllm_request.sampling, stream=vllm_request.stream
        )
        return _Answering(vllm_request, state)

    def step(self, active: list[_Answering]) -> list[Step[Any]]:
        steps = self._engine.step([one.state for one in active])
        return [
            Step(one.responses(step.responses, done=step.done), step.done, step.error)
            for one, step in zip(active, steps, strict=True)
        ]

    def stop(self, state: _Answering) -> None:
        self._engine.stop(state.state)

    def gauges(self) -> Mapping[str, float]:
        return self._engine.gauges()

    # Parts

    def _made(self) -> StepModel:
        name = self.triton.name
        arguments = engine_json(self.version_folder, name)
        checkpoint = str(arguments["model"])
        beside = os.path.join(self.version_folder, checkpoint)
        if not os.path.exists(checkpoint) and os.path.exists(beside):
            checkpoint = beside
        ours, ignored = engine_arguments(arguments)
        if str(arguments.get("enable_lora", False)).lower() == "true":
            ours["adapters"] = _json_object(self.version_folder, ADAPTERS, name)
        others = {key: value for key, value in arguments.items() if key != "model"}
        requested = parameter_text(self.triton, "ENGINE")
        try:
            made, engine = engine_of(
                checkpoint, name=name, requested=requested, ours=ours, vllm=others
            )
        except TypeError as error:
            raise self._wrong(str(error)) from None
        if ignored and engine != "vllm":
            fields = {"model": name, "engine": engine, "ignored": ",".join(ignored)}
            log.info("model.json has arguments for vLLM alone", extra=fields)
        if not isinstance(made, StepModel):
            raise self._wrong(f"engine {engine} does not generate in steps")
        return made

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"model {self.triton.name!r}: {FILE}: {problem}")


def engine_json(folder: str, model: str) -> dict[str, Any]:
    """The arguments of the engine, of which `model` is the checkpoint. ConfigError."""
    found = _json_object(folder, FILE, model)
    if not isinstance(found.get("model"), str) or not found["model"]:
        raise ConfigError(f'model {model!r}: {FILE}: it must name the checkpoint, as "model"')
    return found


def _json_object(folder: str, file: str, model: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, file), "rb") as source:
            found = json.loads(source.read(MAX_FILE_BYTES))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        version = os.path.basename(folder)
        raise ConfigError(f"model {model!r}: version {version}: {file}: {why}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"model {model!r}: {file}: it must be a JSON object")
    return found


@dataclass(frozen=True, slots=True)
class VllmRequest:
    prompt: str
    sampling: Any
    stream: bool
    #: The prompt stands before the answer.
    prepend: bool
    #: The names of further outputs.
    outputs: frozenset[str]

    @classmethod
    def of(cls, inputs: Mapping[str, Any], model: str) -> VllmRequest:
        """Read the inputs. InvalidRequest names what is wrong with one of them."""
        if inputs.get("image") is not None:
            problem = f"model {model!r}: image: this engine takes text alone"
            raise InvalidRequest(problem, field="image")
        stream = _flag(inputs, "stream") or False
        exclude = _flag(inputs, "exclude_input_in_output")
        prepend = not stream if exclude is None else not exclude
        if prepend and stream:
            raise InvalidRequest(
                f"model {model!r}: exclude_input_in_output: false is not allowed when streaming",
                field="exclude_input_in_output",
            )
        text = _text(inputs, "sampling_parameters", model)
        members = inputs.get("parameters") or {}
        sampling = sampling_of(members if text is None else parameters_text(text, model), model)
        requested = [one.name for one in OUTPUTS if _flag(inputs, f"return_{one.name}")]
        if "cumulative_logprob" in requested and sampling.logprobs is None:
            sampling = msgspec.structs.replace(sampling, logprobs=0)
        prompt = _text(inputs, "text_input", model) or ""
        return cls(prompt, sampling, stream, prepend, frozenset(requested))


@dataclass(slots=True)
class _Answering:
    """A request in the engine, and the output that is not sent yet."""

    vllm_request: VllmRequest
    state: Any
    #: The pieces of each answer that are not sent yet.
    pieces: dict[int, Delta] = field(default_factory=dict)
    prompt_tokens: int = 0
    logprobs: dict[int, float] = field(default_factory=dict)

    def responses(self, deltas: Any, *, done: bool) -> list[dict[str, Any]]:
        """The responses for these pieces: one each, or one in all without streaming."""
        if not self.vllm_request.stream:
            for delta in deltas:
                self._note(delta)
                known = self.pieces.setdefault(delta.index, delta)
                if known is not delta:
                    known.extend(delta)
            return [self._response(self.pieces)] if done else []
        found = []
        for delta in deltas:
            self._note(delta)
            found.append(self._response({delta.index: delta}))
        return found

    def _note(self, delta: Delta) -> None:
        self.prompt_tokens = delta.details.get("prompt_tokens", self.prompt_tokens)
        if delta.usage:
            self.prompt_tokens = delta.usage.get("prompt_tokens", self.prompt_tokens)
        total = self.logprobs.get(delta.index, 0.0)
        self.logprobs[delta.index] = total + sum(one["logprob"] or 0 for one in delta.logprobs)

    def _response(self, pieces: Mapping[int, Delta]) -> dict[str, Any]:
        places = range(self.vllm_request.sampling.n)
        found = [pieces.get(place) for place in places]
        before = self.vllm_request.prompt if self.vllm_request.prepend else ""
        texts = [before + one.text if one else before for one in found]
        response: dict[str, Any] = {"text_output": [text.encode() for text in texts]}
        for name in self.vllm_request.outputs:
            response[name] = self._further(name, found)
        return response

    def _further(self, name: str, found: list[Delta | None]) -> Any:
        if name == "finish_reason":
            reasons = [one.finish_reason if one else "" for one in found]
            return [(reason or "None").encode() for reason in reasons]
        if name == "cumulative_logprob":
            sums = [self.logprobs.get(place, math.nan) for place in range(len(found))]
            return np.array(sums, np.float32)
        if name == "num_input_tokens":
            return np.array([self.prompt_tokens], np.uint32)
        if name == "num_output_tokens":
            return np.array([len(one.token_ids) if one else 0 for one in found], np.uint32)
        vllm_request = self.vllm_request.sampling.logprobs is not None
        shown = [
            logprobs_of(one.logprobs if one else []) if vllm_request else None for one in found
        ]
        return [json.dumps(one).encode() for one in shown]


def _flag(inputs: Mapping[str, Any], name: str) -> bool | None:
    value = inputs.get(name)
    return None if value is None else bool(np.ravel(value)[0])


def _text(inputs: Mapping[str, Any], name: str, model: str) -> str | None:
    value = inputs.get(name)
    if value is None:
        return None
    element = value[0] if isinstance(value, list) else value
    try:
        return element.decode() if isinstance(element, bytes) else str(element)
    except UnicodeDecodeError as error:
        problem = f"model {model!r}: {name}: it is not UTF-8 text (byte {error.start})"
        raise InvalidRequest(problem, field=name) from None


#: vLLM's default, which is far below that of `Parameters`.
MAX_TOKENS: Final = 16

#: Sampling parameters of vLLM that have another name here.
_RENAMED: Final = {
    "include_stop_str_in_output": "include_stop",
    "truncate_prompt_tokens": "truncate_prompt",
    "lora_name": "adapter",
}
_SAME: Final = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "min_p", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens",
    "logprobs", "prompt_logprobs", "skip_special_tokens", "logit_bias", "allowed_token_ids",
)  # fmt: skip
#: Parameters that do not change the tokens here, with the values for which that is true.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "detokenize": (True,),
    "spaces_between_special_tokens": (True, False),
    "output_kind": (0, 1, 2),
}
_FORMS: Final = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}

#: Arguments of vLLM's engine that wherry's takes, by its names.
ENGINE: Final = {
    "dtype": "dtype",
    "max_model_len": "context_tokens",
    "max_num_seqs": "max_running",
    "max_num_batched_tokens": "max_step_tokens",
    "block_size": "block_size",
    "generation_config": "generation_config",
}


def sampling_of(vllm_arguments: Mapping[str, Any], model: str) -> Parameters:
    """The parameters that a request of vLLM's Triton backend sets, whose values may be text.
    InvalidRequest names an unknown one."""
    values: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    for name, value in vllm_arguments.items():
        if value is None:
            continue
        if name in _SAME:
            values[name] = value
        elif name in _RENAMED:
            values[_RENAMED[name]] = value
        elif name == "top_k":  # -1: all of them
            values["top_k"] = 0 if str(value) == "-1" else value
        elif name == "stop":
            values["stop"] = [value] if isinstance(value, str) else value
        elif name in ("structured_outputs", "guided_decoding"):
            values["constraint"] = _form(value, name, model)
        elif str(value).lower() not in [str(one).lower() for one in _NEUTRAL.get(name, ())]:
            raise _refused(model, name, "it is not supported")
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        if isinstance(values.get(name), str):
            values[name] = _json(values[name], name, model)
    try:
        return msgspec.convert(values, Parameters, strict=False)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise _refused(model, place.rstrip("`") or "sampling_parameters", problem) from None


def parameters_text(text: str, model: str) -> dict[str, Any]:
    """The input `sampling_parameters`: an object as JSON. InvalidRequest."""
    vllm_arguments = _json(text, "sampling_parameters", model)
    if not isinstance(vllm_arguments, dict):
        raise _refused(model, "sampling_parameters", "it must be a JSON object")
    return vllm_arguments


def engine_arguments(vllm_arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Arguments for wherry's engine, and those of vLLM's that change nothing for it."""
    ours = {ENGINE[name]: value for name, value in vllm_arguments.items() if name in ENGINE}
    return ours, sorted(vllm_arguments.keys() - ENGINE.keys() - {"model", "enable_lora"})


def logprobs_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A piece's log probabilities as vLLM's backend writes them: for each token it and its
    alternatives, by their numbers."""
    return [
        {
            str(token["id"]): {
                "logprob": token["logprob"],
                "rank": rank,
                "decoded_token": token["token"],
            }
            for token, rank in _ranked(entry)
        }
        for entry in entries
    ]


def _ranked(entry: dict[str, Any]) -> list[tuple[dict[str, Any], int | None]]:
    top = [(token, place) for place, token in enumerate(entry.get("top", ()), 1)]
    own = next((rank for token, rank in top if token["id"] == entry["id"]), None)
    return [(entry, own), *((token, rank) for token, rank in top if token["id"] != entry["id"])]


def _form(value: Any, name: str, model: str) -> dict[str, Any]:
    vllm_arguments = _json(value, name, model) if isinstance(value, str) else value
    if not isinstance(vllm_arguments, dict):
        raise _refused(model, name, "it must be an object")
    non_default = {key: one for key, one in vllm_arguments.items() if one not in (None, False)}
    if non_default == {"json_object": True}:
        return non_default
    if len(non_default) != 1 or next(iter(non_default)) not in _FORMS:
        raise _refused(model, name, f"it must have exactly one of {', '.join(_FORMS)}, json_object")
    ((key, form),) = non_default.items()
    if key == "json" and isinstance(form, str):
        form = _json(form, name, model)
    return {_FORMS[key]: form}


def _json(text: str, name: str, model: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _refused(model, name, f"it is not JSON: {error}") from None


def _refused(model: str, name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"model {model!r}: {name}: {why}", field=name)
