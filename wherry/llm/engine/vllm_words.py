"""What do vLLM's words mean here: a request's sampling parameters, an engine's arguments? Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wherry.core.api import InvalidRequest
from wherry.llm.engine.sampling import Parameters

#: vLLM's default, which is far below that of `Parameters`.
MAX_TOKENS: Final = 16

#: Sampling parameters of vLLM that are called otherwise here.
_RENAMED: Final = {
    "include_stop_str_in_output": "include_stop",
    "truncate_prompt_tokens": "truncate_prompt",
    "lora_name": "adapter",
}
_SAME: Final = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "min_p", "seed", "stop_token_ids", "bad_words", "ignore_eos", "max_tokens", "min_tokens",
    "logprobs", "prompt_logprobs", "skip_special_tokens", "logit_bias", "allowed_token_ids",
)  # fmt: skip
#: Parameters that change nothing of what is sampled here, with the values that say so.
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
    InvalidRequest names one that there is not."""
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
        elif name not in _NEUTRAL or not _is_one_of(value, _NEUTRAL[name]):
            raise _refused(model, name, "it is not supported")
    for name in ("stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias"):
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
        raise _refused(model, name, f"it must say one of {', '.join(_FORMS)}, json_object")
    ((key, form),) = non_default.items()
    if key == "json" and isinstance(form, str):
        form = _json(form, name, model)
    return {_FORMS[key]: form}


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return str(value).lower() in [str(one).lower() for one in neutral]


def _json(text: str, name: str, model: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _refused(model, name, f"it is no JSON: {error}") from None


def _refused(model: str, name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"model {model!r}: {name}: {why}", field=name)
