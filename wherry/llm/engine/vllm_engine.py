"""How does vLLM serve a checkpoint with the inputs and outputs of `LLM`?

vLLM's LLMEngine works in steps, as a StepModel does: requests are added and aborted between them.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from wherry.core.api import (
    ConfigError,
    Device,
    InvalidRequest,
    ModelSettings,
    Step,
    WorkerDied,
)
from wherry.llm.engine.adapters import WEIGHTS, AdapterFolders, adapter_config
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.constraint import AnswerForm
from wherry.llm.engine.damaged import brief
from wherry.llm.engine.delta import AnswerPieces, Delta, Reports
from wherry.llm.engine.prompt import Prompt, tokens_of
from wherry.llm.engine.sampling import Sampling, bounded, no_room
from wherry.llm.engine.sequence import Sampled
from wherry.llm.engine.text_model import TextModel
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.answer_text import END_TOKENS, ModelStyle

#: Seconds between two reads of vLLM's metrics, which take some milliseconds.
READ_EVERY: Final = 1.0
#: Our names for vLLM's parameters, where they differ, and the fields by the words of its errors.
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
#: Parameters with the same name in vLLM.
SAME: Final = (
    "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logprobs", "ignore_eos", "max_tokens", "min_tokens",
    "skip_special_tokens",
)  # fmt: skip
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
    answers: AnswerPieces
    #: Number of alternatives requested beside the chosen token.
    alternatives: int
    #: vLLM's number of its adapter; 0: none.
    adapter: int = 0
    generated: int = 0
    #: How a chat's answer is to be read, until that is sent.
    style: dict[str, Any] | None = None
    #: The answer to a request that does not need vLLM: a prompt's tokens, or the text of tokens.
    answer: Delta | None = None


class VLLM(TextModel):
    """A checkpoint served by vLLM. Needs `wherry[vllm]` and, to be fast, a GPU.

        wherry.Server(VLLM("Qwen/Qwen2.5-7B-Instruct", name="chat", max_model_len=8192))

    Inputs and outputs are those of `LLM`, as are `adapters` and `adapter_folder`. `engine` are
    fields of vLLM's EngineArgs; `settings` are fields of ModelConfig (isolation, instances). The
    engine runs in the model's own process: a further process would survive a kill of this one.
    VLLM_ENABLE_V1_MULTIPROCESSING=1 in the environment starts one anyway.
    """

    engine_name = "vLLM"
    unsupported = (
        "echo", "prompt_logprobs", "report_prompt_tokens",
    )  # fmt: skip

    def __init__(
        self,
        source: str | Path,
        *,
        name: str = "",
        max_running: int = 256,
        adapters: Mapping[str, str | Path] | str | None = None,
        adapter_folder: str | None = None,
        settings: ModelSettings | None = None,
        **engine: Any,
    ) -> None:
        super().__init__(source, max_running, {"name": name, **(settings or {})})
        self.adapters = AdapterFolders.of(self.source, adapters, adapter_folder)
        self.variant_store = self.adapters
        self._engine_args = {
            "model": self.source,
            "served_model_name": self._name,
            "max_num_seqs": max_running,
            **engine,
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
        self.vocabulary, self.context_tokens = config.get_vocab_size(), config.max_model_len
        # What vLLM takes from generation_config.json, by its own names, which are ours.
        self.defaults = dict(config.get_diff_sampling_param())
        self.tokenizer = Tokenizer(self._engine.get_tokenizer(), self.context_tokens)
        self.style = ModelStyle(self.tokenizer.chat_template, self.tokenizer.special_tokens())
        self._reports = Reports(self.tokenizer)
        self._numbers = itertools.count()
        self._gauges: dict[str, float] = {}
        self._read_at = -READ_EVERY

    def unload(self) -> None:
        self.__dict__.pop("_engine", None)

    def _begin(
        self, unread: Prompt, sampling: Sampling, *, stream: bool, only_count: bool
    ) -> _VllmRequest:
        tokens = tokens_of(unread.checked(self._name), self.tokenizer)
        if only_count:
            names = sampling.report_prompt_tokens
            return self._answered(self._reports.count(tokens, self.context_tokens, names=names))
        if len(tokens) >= self.context_tokens:
            raise no_room(self._name, len(tokens), self.context_tokens)
        sampling = bounded(self._name, sampling, len(tokens))
        adapter = self._loras.request(sampling.adapter)
        request = self._request(stream, sampling.logprobs or 0)
        request.adapter = 0 if adapter is None else adapter.lora_int_id
        if unread.messages and sampling.constraint is None:
            end = self.tokenizer.decode(tokens[-END_TOKENS:], skip_special=False)
            request.style = self.style.of_answer(end)
            if self.style.hidden(calls=bool(unread.tools)) is not None:  # vLLM hides all or none
                sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
        prompt = {"type": "token", "prompt_token_ids": tokens}
        try:
            self._engine.add_request(
                request.id, prompt, self._sampling(sampling), lora_request=adapter
            )
        except self._refusals as error:  # parameters that vLLM does not support
            raise self._refused(str(error), _field_of(error)) from error
        return request

    def _answered(self, answer: Delta) -> _VllmRequest:
        request = self._request(stream=False, alternatives=0)
        request.answer = answer
        return request

    def _request(self, stream: bool, alternatives: int) -> _VllmRequest:
        return _VllmRequest(
            f"{self._name}-{next(self._numbers)}", AnswerPieces(stream), alternatives
        )

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
        if idle:  # vLLM counts during steps: at its last count there were requests
            self._gauges |= {"running": 0.0, "waiting": 0.0, "kv_cache_usage": 0.0}
        return dict(self._gauges)

    # Parts

    def _thought_marks(self) -> tuple[str, str] | None:
        """The marks around the model's thoughts, by which vLLM bounds them; None: it has none, or
        its files are not here."""
        if "reasoning_parser" in self._engine_args or not Path(self.source).is_dir():
            return None
        return ModelStyle(Checkpoint(Path(self.source)).chat_template(), {}).thoughts_of("")

    def _sampling(self, sampling: Sampling) -> Any:
        form, budget, seed = sampling.constraint, sampling.thinking_budget, sampling.seed
        return self._words.SamplingParams(
            **({} if budget is None else {"thinking_token_budget": budget}),
            **{name: getattr(sampling, name) for name in SAME},
            # 63 bits: vLLM uses -1 for none, and adds the answer's index.
            seed=None if seed is None else seed % 2**63,
            logit_bias=dict(sampling.logit_bias) or None,
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_token_ids),
            allowed_token_ids=list(sampling.allowed_token_ids) or None,
            include_stop_str_in_output=sampling.include_stop,
            structured_outputs=None if form is None else self._form(form),
            output_kind=self._words.RequestOutputKind.DELTA,
        )

    def _form(self, form: AnswerForm) -> Any:
        kinds: dict[str, Any] = {
            "json": form.json_schema,
            "json_object": form.json_object or None,
            "regex": form.regex,
            "choice": None if form.choice is None else list(form.choice),
            "grammar": form.grammar,
        }
        chosen = {name: value for name, value in kinds.items() if value is not None}
        return self._words.StructuredOutputsParams(**chosen)

    def _step(self, request: _VllmRequest, came: Sequence[Any]) -> Step[Delta]:
        if request.answer is not None:
            return Step([request.answer], done=True)
        made: list[Delta] = []
        for answer in itertools.chain.from_iterable(output.outputs for output in came):
            if answer.finish_reason not in (None, "stop", "length"):
                self.stop(request)
                return Step(error=RuntimeError(f"vLLM ended it: {answer.finish_reason}"))
            request.generated += len(answer.token_ids)
            made += request.answers.add(self._delta(request, answer))
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
        logprobs = {token: float(one.logprob) for token, one in found.items()}
        best = sorted(found, key=lambda token: int(found[token].rank))[:most]
        alternatives = tuple((token, logprobs[token]) for token in best)
        return self._reports.token(Sampled(chosen, logprobs[chosen], alternatives))


def _field_of(refusal: Exception) -> str | None:
    """The field that vLLM refuses in a request, by the name or the words in its error."""
    if named := getattr(refusal, "parameter", None):
        return OURS.get(named, str(named))
    problem = str(refusal)
    return next((field for words, field in MEANT.items() if problem.startswith(words)), None)


#: The ranks for which vLLM has room; the least by its default.
RANKS: Final = (16, 32, 64, 128, 256, 320, 512)
#: Adapters that run at once where folders may come and go, and the most by default.
MORE: Final = 4
MOST: Final = 8


def engine_arguments(folders: AdapterFolders) -> dict[str, Any]:
    """Arguments of vLLM's engine that give room for these adapters. ConfigError if one cannot be
    read. Reads files."""
    if not folders:
        return {}
    names = folders.names()
    found = [folder for name in names if (folder := folders.find(name)) is not None]
    most = max((adapter_config(folder).r for folder in found), default=RANKS[0])
    return {
        "enable_lora": True,
        "max_lora_rank": next((rank for rank in RANKS if rank >= most), RANKS[-1]),
        "max_loras": min(MOST, max(len(names), MORE if folders.folder is not None else 1)),
    }


@dataclass(frozen=True, slots=True)
class _Known:
    files: tuple[int, ...]
    request: Any


class VllmAdapters:
    """The adapters of one engine. `make` is vLLM's LoRARequest.

    vLLM knows an adapter by a number and keeps its cache by the name: changed files get a new
    number and name. The files are loaded here: loaded by a request's step, a damaged file would end
    the step, and with it the engine.
    """

    def __init__(
        self, model: str, folders: AdapterFolders, engine: Any, make: Callable[..., Any]
    ) -> None:
        self._model = model
        self._folders = folders
        self._engine = engine
        self._make = make
        self._numbers: Iterator[int] = itertools.count(1)
        self._known: dict[str, _Known] = {}
        #: Numbers of those that were replaced or removed, which vLLM still has.
        self._left: set[int] = set()

    def request(self, name: str) -> Any:
        """vLLM's request object for an adapter, which it now has; None without a name.
        AdapterNotFound, or InvalidRequest if vLLM cannot read it. Blocks, when it is new."""
        folder = self._folders.found(self._model, name)
        if folder is None:
            return None
        known = self._known.get(name)
        if known is None or known.files != _files(folder):
            self._forget(name)
            known = self._known[name] = self._loaded(name, folder)
        return known.request

    def sweep(self, in_use: Collection[int]) -> None:
        """Have vLLM forget adapters that are gone or replaced, once no request runs with them."""
        for name in [name for name in self._known if self._folders.find(name) is None]:
            self._forget(name)
        for number in self._left.difference(in_use):
            self._left.remove(number)
            self._engine.remove_lora(number)

    def _forget(self, name: str) -> None:
        if (known := self._known.pop(name, None)) is not None:
            self._left.add(known.request.lora_int_id)

    def _loaded(self, name: str, folder: Path) -> _Known:
        files, number = _files(folder), next(self._numbers)
        request = self._make(f"{name}.{number}", number, str(folder.resolve()))
        try:
            adapter_config(folder)
            self._engine.add_lora(request)
        except Exception as error:  # of any type, by what vLLM finds in the files
            why = str(error) if isinstance(error, ConfigError) else brief(error)
            problem = f"model {self._model!r}: adapter {name}: vLLM does not load it: {why}"
            raise InvalidRequest(problem, field="adapter") from error
        return _Known(files, request)


def _files(folder: Path) -> tuple[int, ...]:
    """The identity of an adapter's weights file, which changes with it; () without a file."""
    try:
        at = (folder / WEIGHTS).stat()
    except OSError:
        return ()
    return at.st_dev, at.st_ino, at.st_mtime_ns
