"""How does vLLM serve behind the same front: the inputs and outputs of an LLM over its engine?

vLLM's LLMEngine works in steps, as a StepModel does: requests are added and aborted between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wherry.errors import ConfigError, InvalidRequest
from wherry.llm.constraint import Wanted
from wherry.llm.llm import Delta
from wherry.llm.sampling import Sampling
from wherry.llm.tokenizer import OURS
from wherry.model import Device
from wherry.step_model import Step, StepModel


@dataclass(slots=True, eq=False)
class _Request:
    id: str
    stream: bool
    prompt_tokens: int = 0
    generated: int = 0
    #: With `stream` off: the answers that are under way, by index.
    whole: dict[int, Delta] = field(default_factory=dict)


class VLLM(StepModel):
    """A checkpoint that vLLM runs, with the inputs and outputs of `LLM`. `wherry[vllm]`, a GPU.

        wherry.Server(VLLM("Qwen/Qwen2.5-7B-Instruct", name="chat", max_model_len=8192))

    `engine` are vLLM's EngineArgs. Give settings of the model (isolation, instances) as `settings`.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        name: str = "",
        max_running: int = 256,
        settings: Mapping[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        self.source = str(source)
        self._engine_args = {"model": self.source, "max_num_seqs": max_running, **engine}
        self._settings = {
            "name": name or Path(self.source).name,
            "max_batch_size": max_running,
            "description": f"Text generation with {Path(self.source).name} by vLLM",
            **(settings or {}),
        }

    def load(self, device: Device) -> None:
        try:
            import vllm
        except ImportError as error:
            raise ConfigError("vLLM: pip install 'wherry[vllm]'") from error
        self._vllm = vllm
        self._engine: Any = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**self._engine_args))
        self._numbers = itertools.count()
        self._outputs: dict[str, Any] = {}

    def unload(self) -> None:
        self.__dict__.pop("_engine", None)

    def start(
        self,
        prompt: str = "",
        messages: Sequence[dict[str, Any]] = (),
        token_ids: Sequence[int] = (),
        tools: Sequence[dict[str, Any]] = (),
        template: dict[str, Any] = {},  # noqa: B006 - never changed
        parameters: Sampling = Sampling(),  # noqa: B008 - frozen
        stream: bool = True,
    ) -> _Request:
        if [bool(prompt), bool(messages), bool(token_ids)].count(True) != 1:
            raise self._refused("give one of prompt, messages and token_ids")
        given: dict[str, Any] = {"prompt": prompt}
        if messages:
            given = {"prompt_token_ids": self._chat(messages, tools, template)}
        elif token_ids:
            given = {"prompt_token_ids": list(token_ids)}
        request = _Request(f"{self._settings['name']}-{next(self._numbers)}", stream)
        try:
            self._engine.add_request(request.id, given, self._sampling(parameters))
        except (ValueError, TypeError) as error:  # what vLLM says of wishes that it cannot fulfil
            raise self._refused(str(error)) from error
        return request

    def step(self, active: list[_Request]) -> list[Step[Delta]]:
        came = {output.request_id: output for output in self._engine.step()}
        return [self._step(request, came.get(request.id)) for request in active]

    def stop(self, state: _Request) -> None:
        self._engine.abort_request([state.id])

    # Parts

    def _chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        template: Mapping[str, Any],
    ) -> list[int]:
        for name in OURS & template.keys():
            raise self._refused(f"template: {name!r} is not for a request to set")
        tokenizer = self._engine.get_tokenizer()
        try:
            text: str = tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                **{"add_generation_prompt": True, **template},
            )
        except Exception as error:  # a template is the checkpoint's code: anything may come
            raise self._refused(f"the chat template refuses these messages: {error}") from error
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def _sampling(self, wanted: Sampling) -> Any:
        """A request's wishes in vLLM's words."""
        form = None if wanted.constraint is None else self._form(wanted.constraint)
        return self._vllm.SamplingParams(
            n=wanted.n,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            min_p=wanted.min_p,
            repetition_penalty=wanted.repetition_penalty,
            presence_penalty=wanted.presence_penalty,
            frequency_penalty=wanted.frequency_penalty,
            seed=wanted.seed,
            logit_bias=dict(wanted.logit_bias) or None,
            logprobs=wanted.logprobs,
            stop=list(wanted.stop),
            stop_token_ids=list(wanted.stop_token_ids),
            ignore_eos=wanted.ignore_eos,
            max_tokens=wanted.max_tokens,
            min_tokens=wanted.min_tokens,
            include_stop_str_in_output=wanted.include_stop,
            skip_special_tokens=wanted.skip_special_tokens,
            structured_outputs=form,
            output_kind=self._sampling_module().RequestOutputKind.DELTA,
        )

    def _form(self, wanted: Wanted) -> Any:
        kinds: dict[str, Any] = {
            "json": wanted.json_schema,
            "json_object": wanted.json_object or None,
            "regex": wanted.regex,
            "choice": None if wanted.choice is None else list(wanted.choice),
            "grammar": wanted.grammar,
        }
        given = {name: value for name, value in kinds.items() if value is not None}
        return self._sampling_module().StructuredOutputsParams(**given)

    def _sampling_module(self) -> Any:
        from vllm import sampling_params

        return sampling_params

    def _step(self, request: _Request, output: Any) -> Step[Delta]:
        """What has come for one request, if anything has."""
        if output is None:
            return Step()
        request.prompt_tokens = len(output.prompt_token_ids or ()) or request.prompt_tokens
        made: list[Delta] = []
        for answer in output.outputs:
            request.generated += len(answer.token_ids)
            delta = _delta(answer)
            if not request.stream:
                delta = _joined(request.whole, delta)
            if request.stream or delta.finish_reason:
                made.append(delta)
        if output.finished and made:
            made[-1].usage = {
                "prompt_tokens": request.prompt_tokens,
                "completion_tokens": request.generated,
                "cached_tokens": output.num_cached_tokens or 0,
            }
        return Step(made, done=output.finished)

    def _refused(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"model {self._settings['name']!r}: {problem}")


def _delta(answer: Any) -> Delta:
    tokens = [int(token) for token in answer.token_ids]
    logprobs = [
        _logprob(token, found) for token, found in zip(tokens, answer.logprobs or (), strict=False)
    ]
    reason = answer.finish_reason or ""
    if reason not in ("", "length"):
        reason = "stop"
    return Delta(answer.index, answer.text, tokens, reason, logprobs, {})


def _logprob(token: int, found: Mapping[int, Any]) -> dict[str, Any]:
    """vLLM has the chosen token among the alternatives, whether it is one of the best or not."""

    def entry(number: int) -> dict[str, Any]:
        text = found[number].decoded_token or ""
        value = {"token": text, "id": number, "logprob": float(found[number].logprob)}
        return {**value, "bytes": list(text.encode())}

    others = sorted(found, key=lambda number: -found[number].logprob)
    return {**entry(token), "top": [entry(number) for number in others]}


def _joined(whole: dict[int, Delta], delta: Delta) -> Delta:
    so_far = whole.setdefault(delta.index, Delta(delta.index, "", [], "", [], {}))
    so_far.text += delta.text
    so_far.token_ids += delta.token_ids
    so_far.logprobs += delta.logprobs
    so_far.finish_reason = delta.finish_reason
    return so_far
