"""How does vLLM serve a checkpoint with the inputs and outputs of `LLM`?

vLLM's LLMEngine works in steps, as a StepModel does: requests are added and aborted between them.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from wherry.core.api import ConfigError, Device, InvalidRequest, Step, StepModel, WorkerDied
from wherry.llm.engine.adapters import AdapterFolders
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.checks import bounded, check_task, check_tokens, no_room
from wherry.llm.engine.choice import hub_names
from wherry.llm.engine.constraint import AnswerForm
from wherry.llm.engine.delta import Delta
from wherry.llm.engine.prompt import Prompt, tokens_of
from wherry.llm.engine.report import Reports
from wherry.llm.engine.sampling import Parameters, Sampling
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.vllm_adapters import VllmAdapters, engine_arguments
from wherry.llm.formats.model_style import END_TOKENS, ModelStyle

#: Seconds between two reads of vLLM's metrics, which take some milliseconds.
READ_EVERY: Final = 1.0
#: Parameters that this adapter does not have.
UNSUPPORTED: Final = (
    "echo", "bad_words_ids", "logprob_token_ids", "prompt_logprobs", "report_prompt_tokens",
    "truncate_prompt",
)  # fmt: skip
#: Our names for vLLM's parameters, where it has others, and the fields that its words mean.
OURS: Final = {
    "thinking_token_budget": "thinking_budget",
    "include_stop_str_in_output": "include_stop",
    "structured_outputs": "constraint",
    "prompt_token_ids": "token_ids",
    "input_tokens": "prompt",
}
MEANT: Final = {
    "Grammar error": "constraint",
    "Token id": "token_ids",
    "thinking_token_budget": "thinking_budget",
}
#: Our names for vLLM's metrics.
GAUGES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:prompt_tokens": "prompt_tokens_total",
    "vllm:generation_tokens": "generation_tokens_total",
    "vllm:prefix_cache_queries": "prefix_cache_queries_total",
    "vllm:prefix_cache_hits": "prefix_cache_hits_total",
    "vllm:num_preemptions": "preemptions_total",
}


@dataclass(slots=True, eq=False)
class _VllmRequest:
    id: str
    stream: bool
    #: Number of alternatives requested beside the chosen token.
    alternatives: int
    #: vLLM's number of its adapter; 0: none.
    adapter: int = 0
    generated: int = 0
    #: Without `stream`: the answers so far, by index.
    whole: dict[int, Delta] = field(default_factory=dict)
    #: How a chat's answer is to be read, until that is told.
    style: dict[str, Any] | None = None
    #: Of a request that vLLM has no part in: the tokens of a prompt, or the text of tokens.
    answer: Delta | None = None


class VLLM(StepModel):
    """A checkpoint served by vLLM. Needs `wherry[vllm]` and, to be fast, a GPU.

        wherry.Server(VLLM("Qwen/Qwen2.5-7B-Instruct", name="chat", max_model_len=8192))

    Inputs and outputs are those of `LLM`, as are `adapters` and `adapter_folder`. `engine` are
    fields of vLLM's EngineArgs; `settings` are fields of ModelConfig (isolation, instances). The
    engine runs in the model's own process: a further process would survive a kill of this one.
    VLLM_ENABLE_V1_MULTIPROCESSING=1 in the environment starts one anyway.
    """

    examples = ({"prompt": "Hello", "parameters": {"max_tokens": 4, "temperature": 0.0}},)

    def __init__(
        self,
        source: str | Path,
        *,
        name: str = "",
        max_running: int = 256,
        adapters: Mapping[str, str | Path] | str | None = None,
        adapter_folder: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        self.source = str(source)
        self._name = name or Path(self.source).name
        self.adapters = self.variant_store = AdapterFolders.of(
            self.source, adapters, adapter_folder
        )
        self._engine_args = {
            "model": self.source,
            "served_model_name": self._name,
            "max_num_seqs": max_running,
            **engine,
        }
        self._settings = {
            "name": self._name,
            "served_names": hub_names(self.source, name),
            "max_batch_size": max_running,
            "description": f"Text generation with {Path(self.source).name} by vLLM",
            **(settings or {}),
        }

    def load(self, device: Device) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in llm.py
        try:
            import vllm
            from vllm import exceptions, platforms, sampling_params
            from vllm.config import ReasoningConfig
            from vllm.lora.request import LoRARequest
        except ImportError as error:
            raise ConfigError("vLLM: pip install 'wherry[vllm]'") from error
        self._words, self._refusals = sampling_params, (exceptions.VLLMClientError, ValueError)
        arguments = {**engine_arguments(self.adapters), **self._engine_args}
        if marks := self._thought_marks():
            begin, end = marks
            thoughts = ReasoningConfig(reasoning_start_str=begin, reasoning_end_str=end)
            arguments.setdefault("reasoning_config", thoughts)
        if platforms.current_platform.is_cpu():
            # vLLM's CPU build must load its OpenMP library before torch: in a child process, which
            # ends with this one. Otherwise it is slower by a factor of 5.
            arguments = {"distributed_executor_backend": "mp", **arguments}
        self._engine: Any = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        self._loras = VllmAdapters(self._name, self.adapters, self._engine, LoRARequest)
        config = self._engine.model_config
        self._vocabulary: int = config.get_vocab_size()
        self._context: int = config.max_model_len
        # What vLLM takes from generation_config.json, by its own names, which are ours.
        self._defaults = dict(config.get_diff_sampling_param())
        self._tokenizer = Tokenizer(self._engine.get_tokenizer(), self._context)
        self._style = ModelStyle(self._tokenizer.chat_template, self._tokenizer.special_tokens())
        self._numbers = itertools.count()
        self._gauges: dict[str, float] = {}
        self._read_at = -READ_EVERY

    def unload(self) -> None:
        self.__dict__.pop("_engine", None)

    def start(
        self,
        prompt: str = "",
        messages: Sequence[dict[str, Any]] = (),
        token_ids: Sequence[int] = (),
        tools: Sequence[dict[str, Any]] = (),
        template: dict[str, Any] = {},  # noqa: B006 - never changed
        parameters: Parameters = Parameters(),  # noqa: B008 - frozen
        stream: bool = True,
        task: str = "generate",
    ) -> _VllmRequest:
        check_task(self._name, task)
        if task == "detokenize":
            return self._answered(self._text_of(token_ids))
        prompted = Prompt(
            prompt=prompt,
            messages=messages,
            token_ids=token_ids,
            tools=tools,
            template=template,
            special=parameters.add_special_tokens,
            may_be_empty=task == "tokenize",
        )
        tokens = tokens_of(prompted.checked(self._name), self._tokenizer)
        if task == "tokenize":
            names = bool(parameters.report_prompt_tokens)
            return self._answered(
                Reports(self._tokenizer).count(tokens, self._context, names=names)
            )
        requested_sampling = parameters.resolved(self._defaults).checked(
            self._name, self._vocabulary
        )
        for name in UNSUPPORTED:
            if getattr(requested_sampling, name) not in (None, False, ()):
                raise self._refused(f"{name} is not supported by vLLM's adapter", name)
        if len(tokens) >= self._context:
            raise no_room(self._name, len(tokens), self._context)
        requested_sampling = bounded(self._name, requested_sampling, len(tokens))
        given = {"type": "token", "prompt_token_ids": tokens}
        adapter = self._loras.request(parameters.adapter)
        request = _VllmRequest(
            f"{self._name}-{next(self._numbers)}", stream, requested_sampling.logprobs or 0
        )
        request.adapter = 0 if adapter is None else adapter.lora_int_id
        if messages and requested_sampling.constraint is None:
            end = self._tokenizer.decode(tokens[-END_TOKENS:], skip_special=False)
            request.style = self._style.of_answer(end)
            if self._style.hidden(calls=bool(tools)) is not None:  # vLLM hides all or none
                requested_sampling = msgspec.structs.replace(
                    requested_sampling, skip_special_tokens=False
                )
        try:
            self._engine.add_request(
                request.id, given, self._sampling(requested_sampling), lora_request=adapter
            )
        except self._refusals as error:  # parameters that vLLM does not support
            raise self._refused(str(error), _field_of(error)) from error
        return request

    def step(self, active: list[_VllmRequest]) -> list[Step[Delta]]:
        came: dict[str, list[Any]] = defaultdict(list)  # by request, one output for each answer
        try:
            # With a process of its own vLLM would wait for an output where it has no request.
            for output in self._engine.step() if self._engine.has_unfinished_requests() else ():
                came[output.request_id].append(output)
            self._loras.sweep({request.adapter for request in active})
        except Exception as error:  # an error of a step ends vLLM's engine for good
            raise WorkerDied(f"model {self._name!r}: vLLM failed: {error}") from error
        return [self._step(request, came.get(request.id, ())) for request in active]

    def stop(self, state: _VllmRequest) -> None:
        if state.answer is None:
            self._engine.abort_request([state.id])

    def gauges(self) -> Mapping[str, float]:
        idle = not self._engine.has_unfinished_requests()
        if self._engine.log_stats and (idle or monotonic() >= self._read_at + READ_EVERY):
            self._read_at = monotonic()
            for metric in self._engine.get_metrics():
                if metric.name in GAUGES and metric.labels.get("model_name") == self._name:
                    self._gauges[GAUGES[metric.name]] = float(metric.value)
        if idle:  # vLLM counts during steps: its last count still had requests
            self._gauges |= {"running": 0.0, "waiting": 0.0, "kv_cache_usage": 0.0}
        return dict(self._gauges)

    def cost(self, *row: Any) -> float:
        """Estimate the length of the prompt before it is tokenized."""
        prompt, messages, token_ids = row[:3]
        return 1.0 + len(prompt or "") + 4 * len(token_ids or ()) + len(str(messages or ""))

    # Parts

    def _text_of(self, tokens: Sequence[int]) -> Delta:
        """The text of tokens, special ones included, as an answer."""
        check_tokens(self._name, tokens, self._vocabulary, "token_ids")
        return Delta(0, self._tokenizer.decode(tokens, skip_special=False), [], "stop", [], {})

    def _answered(self, answer: Delta) -> _VllmRequest:
        return _VllmRequest(f"{self._name}-{next(self._numbers)}", False, 0, answer=answer)

    def _thought_marks(self) -> tuple[str, str] | None:
        """The marks around the model's thoughts, by which vLLM bounds them; None: it has none, or
        its files are not here."""
        if "reasoning_parser" in self._engine_args or not Path(self.source).is_dir():
            return None
        return ModelStyle(Checkpoint(Path(self.source)).chat_template(), {}).thoughts_of("")

    def _sampling(self, requested_sampling: Sampling) -> Any:
        """The request's parameters as vLLM's SamplingParams."""
        form = (
            None
            if requested_sampling.constraint is None
            else self._form(requested_sampling.constraint)
        )
        budget = requested_sampling.thinking_budget
        return self._words.SamplingParams(
            **({} if budget is None else {"thinking_token_budget": budget}),
            n=requested_sampling.n,
            temperature=requested_sampling.temperature,
            top_p=requested_sampling.top_p,
            top_k=requested_sampling.top_k,
            min_p=requested_sampling.min_p,
            repetition_penalty=requested_sampling.repetition_penalty,
            presence_penalty=requested_sampling.presence_penalty,
            frequency_penalty=requested_sampling.frequency_penalty,
            # 63 bits: vLLM uses -1 for none, and adds the answer's index.
            seed=None if requested_sampling.seed is None else requested_sampling.seed % 2**63,
            logit_bias=dict(requested_sampling.logit_bias) or None,
            logprobs=requested_sampling.logprobs,
            stop=list(requested_sampling.stop),
            stop_token_ids=list(requested_sampling.stop_token_ids),
            allowed_token_ids=list(requested_sampling.allowed_token_ids) or None,
            bad_words=list(requested_sampling.bad_words),
            ignore_eos=requested_sampling.ignore_eos,
            max_tokens=requested_sampling.max_tokens,
            min_tokens=requested_sampling.min_tokens,
            include_stop_str_in_output=requested_sampling.include_stop,
            skip_special_tokens=requested_sampling.skip_special_tokens,
            structured_outputs=form,
            output_kind=self._words.RequestOutputKind.DELTA,
        )

    def _form(self, requested_sampling: AnswerForm) -> Any:
        kinds: dict[str, Any] = {
            "json": requested_sampling.json_schema,
            "json_object": requested_sampling.json_object or None,
            "regex": requested_sampling.regex,
            "choice": None
            if requested_sampling.choice is None
            else list(requested_sampling.choice),
            "grammar": requested_sampling.grammar,
        }
        given = {name: value for name, value in kinds.items() if value is not None}
        return self._words.StructuredOutputsParams(**given)

    def _step(self, request: _VllmRequest, came: Sequence[Any]) -> Step[Delta]:
        """The step result of one request from vLLM's outputs for it."""
        if request.answer is not None:
            return Step([request.answer], done=True)
        made: list[Delta] = []
        for answer in itertools.chain.from_iterable(output.outputs for output in came):
            if answer.finish_reason not in (None, "stop", "length"):
                self.stop(request)
                return Step(error=RuntimeError(f"vLLM ended it: {answer.finish_reason}"))
            request.generated += len(answer.token_ids)
            delta = self._delta(request, answer)
            if not request.stream:
                whole = request.whole.setdefault(delta.index, Delta.empty(delta.index))
                whole.extend(delta)
                delta = whole
            if request.stream or delta.finish_reason:
                made.append(delta)
        if not came or not came[-1].finished:
            return Step(made)
        last = came[-1]
        made[-1].usage = {
            "prompt_tokens": len(last.prompt_token_ids),
            "completion_tokens": request.generated,
            "cached_tokens": last.num_cached_tokens or 0,
        }
        return Step(made, done=True)

    def _delta(self, request: _VllmRequest, answer: Any) -> Delta:
        tokens = [int(token) for token in answer.token_ids]
        logprobs = [
            self._logprob(token, found, request.alternatives)
            for token, found in zip(tokens, answer.logprobs or (), strict=False)
        ]
        details, request.style = {"style": request.style} if request.style else {}, None
        reason = answer.finish_reason or ""
        return Delta(answer.index, answer.text, tokens, reason, logprobs, {}, details)

    def _logprob(self, chosen: int, found: Mapping[int, Any], most: int) -> dict[str, Any]:
        """One token's entry in `logprobs`. vLLM lists the chosen token among the alternatives even
        if it is not one of the most probable."""

        def entry(token: int) -> dict[str, Any]:
            text, raw = self._tokenizer.piece(token)
            logprob = float(found[token].logprob)
            return {"token": text, "id": token, "logprob": logprob, "bytes": list(raw)}

        best = sorted(found, key=lambda token: int(found[token].rank))[:most]
        return {**entry(chosen), "top": [entry(token) for token in best]}

    def _refused(self, problem: str, field: str | None = None) -> InvalidRequest:
        return InvalidRequest(f"model {self._name!r}: {problem}", field=field)


def _field_of(refusal: Exception) -> str | None:
    """The field that vLLM's refusal of a request means, by what it names or says."""
    if named := getattr(refusal, "parameter", None):
        return OURS.get(named, str(named))
    problem = str(refusal)
    return next((field for words, field in MEANT.items() if problem.startswith(words)), None)
