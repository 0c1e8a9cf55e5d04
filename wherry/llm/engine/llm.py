"""How is a checkpoint served: texts or messages in, pieces of text out?"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

from wherry.core.api import (
    ConfigError,
    Device,
    ModelConfig,
    ModelSettings,
    Step,
    for_torch,
)
from wherry.llm.engine.adapters import AdapterFolders
from wherry.llm.engine.choice import AUTO
from wherry.llm.engine.delta import Delta, Reports
from wherry.llm.engine.memory import RUNNING, RUNNING_ON_GPU
from wherry.llm.engine.prompt import Form, Prompt, PromptReader, TokenizedPrompt
from wherry.llm.engine.request import (
    Detokenizer,
    EngineRequest,
    GeneratedAnswer,
    StopTexts,
    ThoughtTokens,
)
from wherry.llm.engine.sampling import Sampling, bounded, check_room, defaults_of
from wherry.llm.engine.scheduler import PROMPT_SHARE
from wherry.llm.engine.sequence import Sequence as Generation
from wherry.llm.engine.text_model import TextModel
from wherry.llm.formats.answer_text import END_TOKENS, ModelStyle, checked

if TYPE_CHECKING:  # imports torch, which only the model's own process needs
    from wherry.llm.engine.engine import Engine, Event

log = logging.getLogger("wherry")

#: Iterations (40 ns each) for which an idle OpenMP thread spins before it sleeps.
SPINS = "2000"
#: Seconds that an idle engine waits for a prompt that another thread tokenizes.
READ_WAIT_SECONDS = 0.01


def _loading(source: str) -> ModuleType:
    """The module of wherry's own engine. ConfigError if a package that it needs is missing."""
    try:
        # transformers' module replaces itself while it is imported: another thread that imports
        # a name from it meanwhile would not find it.
        import_module("transformers")
        return import_module("wherry.llm.engine.loading")
    except ImportError as error:
        raise ConfigError(
            f"llm {source}: its engine cannot be imported ({error}): pip install 'wherry[llm]'"
        ) from error


def _wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Have torch's idle threads spin for about 0.1 ms and then sleep, unless the environment sets
    it.

    Most gaps between two products are shorter than that, and waking a thread takes a tenth of a
    product's time; longer spinning takes CPU from other processes. OpenMP reads the variables when
    torch is first imported, so this only works in a new process.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        environment.setdefault("GOMP_SPINCOUNT", SPINS)


class LLM(TextModel):
    """Serve the checkpoint of a decoder model with wherry's engine.

        from wherry.llm import LLM

        with wherry.Runtime(LLM("path/to/checkpoint", name="chat")) as runtime:
            for delta in runtime.stream("chat", prompt="Once upon a time"):
                print(delta["text"], end="")

    `source` is a folder written by `save_pretrained`, a .gguf file or a hub id. A request has one
    of `prompt`, `messages` (for the chat template) and `token_ids`; `parameters` are fields of
    Sampling, `template` variables of the chat template. Responses are `Delta`s, one for each answer
    if `stream` is false. `task` "tokenize" returns the tokens of the prompt or messages,
    "detokenize" the text of `token_ids`.

    `adapters` maps names to folders of LoRA adapters; folders in `adapter_folder` are adapters,
    too, and may be added and removed at any time.

    docs/how-to/llm.md explains all settings.
    """

    max_batch_size = RUNNING
    max_queue_size = 1024

    def __init__(
        self,
        source: str | Path,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        engine: str = AUTO,
        adapters: Mapping[str, str | Path] | str | None = None,
        adapter_folder: str | None = None,
        context_tokens: int | None = None,
        cache_gb: float | None = None,
        gpu_memory: float | None = None,
        max_running: int | None = None,
        max_step_tokens: int | None = None,
        prompt_share: float = PROMPT_SHARE,
        block_size: int = 16,
        threads: int | None = None,
        generation_config: str = "auto",
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        **settings: Unpack[ModelSettings],
    ) -> None:
        if generation_config not in ("auto", "none"):
            raise ConfigError(f"llm {source}: generation_config must be 'auto' or 'none'")
        self._uses_defaults = generation_config == "auto"
        self._parsers = {
            "tools": checked("tool_parser", tool_parser),
            "thoughts": checked("reasoning_parser", reasoning_parser),
        }
        self._options: dict[str, Any] = {
            "dtype": dtype,
            "quantization": quantization,
            "engine": engine,
            "context_tokens": context_tokens,
            "cache_gb": cache_gb,
            "gpu_memory": gpu_memory,
            "max_running": max_running,
            "max_step_tokens": max_step_tokens,
            "prompt_share": prompt_share,
            "block_size": block_size,
            "threads": threads,
        }
        if max_running is not None and max_running < 1:
            raise ConfigError(f"llm {source}: max_running must be at least 1")
        if not 0 <= prompt_share <= 1:
            raise ConfigError(f"llm {source}: prompt_share must be 0 to 1, not {prompt_share}")
        super().__init__(source, max_running or RUNNING, settings)
        self.adapters = AdapterFolders.of(self.source, adapters, adapter_folder)
        self.variant_store = self.adapters

    def most_active(self, config: ModelConfig, device: Device) -> int:
        chosen = self._options["max_running"] or config.max_batch_size != RUNNING
        return RUNNING_ON_GPU if device.kind == "cuda" and not chosen else config.max_batch_size

    def load(self, device: Device) -> None:
        _wait_briefly(os.environ)
        loading, where = _loading(self.source), str(for_torch(device, self._name))
        network, self._kept = self._kept, None
        loading.moved(self._moved, where)
        self._moved = ()
        self.engine, self.tokenizer = loading.load_engine(
            self.source,
            self._name,
            where,
            network=network,
            adapted=bool(self.adapters),
            **self._options,
        )
        self.vocabulary, self.context_tokens = self.engine.vocabulary, self.engine.context_tokens
        self.defaults = _defaults(self._name, self.source) if self._uses_defaults else {}
        if most := self.defaults.get("max_tokens"):
            self.defaults = {**self.defaults, "max_tokens": min(most, self.context_tokens)}
        self._reports = Reports(self.tokenizer)
        self.style = ModelStyle(
            self.tokenizer.chat_template, self.tokenizer.special_tokens(), **self._parsers
        )
        self._prompts = PromptReader(
            self._name, self.tokenizer, self.vocabulary, self.engine.adapters, self.style
        )
        self._requests: dict[Generation, tuple[EngineRequest, GeneratedAnswer]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="wherry-reader")

    def to_host(self) -> bool:
        """Keep the weights; the cache and what was recorded for it are built again."""
        network = self.engine.network
        self._moved = [] if network is None else _loading(self.source).moved([network], "cpu")
        if self._moved:
            self._kept = network
            self.unload()
        return bool(self._moved)

    def to_device(self, device: Device) -> None:
        self.load(device)

    #: The network whose weights are in host memory.
    _kept: Any = None

    def unload(self) -> None:
        self.__dict__.pop("engine", None)
        if "_reader" in self.__dict__:
            self._reader.shutdown(cancel_futures=True)

    #: The generator, once loaded.
    engine: Engine

    def _begin(
        self, unread: Prompt, sampling: Sampling, *, stream: bool, only_count: bool
    ) -> EngineRequest:
        """Add a request. A long prompt is tokenized in another thread."""
        if not only_count:
            check_room(self._name, sampling, self.context_tokens)
        request = EngineRequest(
            sampling,
            stream,
            unread.prompt,
            only_count=only_count,
            has_style=bool(unread.messages),
            may_call=bool(unread.tools),
        )
        if unread.is_short:
            self._generate(request, self._prompts.read(unread))
        else:
            request.reading = self._reader.submit(self._prompts.read, unread)
            self._generate_if_read(request)
        return request

    def _answered(self, answer: Delta) -> EngineRequest:
        return EngineRequest(Sampling(), stream=False, prompt="", answers=[], deltas=[answer])

    def step(self, active: list[EngineRequest]) -> list[Step[Delta]]:
        unread = [request for request in active if request.answers is None]
        for request in unread:
            try:
                self._generate_if_read(
                    request, at_most=0.0 if self.engine.busy else READ_WAIT_SECONDS
                )
            except Exception as error:  # noqa: BLE001 - of any library; only this request fails
                request.error = error
        events = self.engine.step()
        for request in active:
            request.describe_prompt(self._reports)
        for event in events:
            request, answer = self._requests[event.sequence]
            try:
                self._apply(event, request, answer)
            except Exception as error:  # noqa: BLE001 - of any library; only this request fails
                request.error = error
        return [self._step(request) for request in active]

    def _step(self, request: EngineRequest) -> Step[Delta]:
        if request.error is not None:
            self.stop(request)
            return Step(error=request.error)
        deltas: list[Delta] = []
        if request.stream or request.done:
            deltas, request.deltas = request.deltas, []
        return Step(deltas, done=request.done)

    def stop(self, state: EngineRequest) -> None:
        if state.reading is not None:
            state.reading.cancel()  # if it has not begun, it does not delay the next one
        for answer in state.answers or ():
            if not answer.done:
                self.engine.remove(answer.sequence)
                self._requests.pop(answer.sequence, None)

    def gauges(self) -> Mapping[str, float]:
        return self.engine.gauges()

    # Parts

    def _generate_if_read(self, request: EngineRequest, at_most: float = READ_WAIT_SECONDS) -> None:
        """Start generating if the prompt is tokenized within `at_most` seconds; InvalidRequest if
        it is invalid. Meanwhile other generations go on."""
        assert request.reading is not None
        if wait([request.reading], at_most).done:
            self._generate(request, request.reading.result())

    def _generate(self, request: EngineRequest, read: TokenizedPrompt) -> None:
        request.tokens = read.tokens
        if request.only_count:
            request.answers = []
            context, names = self.engine.context_tokens, request.sampling.report_prompt_tokens
            request.deltas.append(self._reports.count(read.tokens, context, names=names))
            return
        sampling = bounded(self._name, request.sampling, len(read.tokens))
        constraint = read.constraint
        constraints: list[Form] = []
        if constraint is not None:
            constraints = [constraint, *(constraint.copy() for _ in range(1, sampling.n))]
        adapter = ""
        if read.adapter is not None and self.engine.adapters is not None:
            adapter = self.engine.adapters.attach(read.adapter, {s.adapter for s in self._requests})
        sequences = self.engine.add(
            request.tokens, sampling, constraints=constraints, adapter=adapter
        )
        skips, hidden = sampling.skip_special_tokens, frozenset[int]()
        if request.has_style:
            end = self.tokenizer.decode(request.tokens[-END_TOKENS:], skip_special=False)
            request.style = self.style.of_answer(end)
            request.thoughts = ThoughtTokens.behind(end, self.style, self.tokenizer)
            found = self.style.hidden(calls=request.may_call) if skips else None
            skips, hidden = (skips, hidden) if found is None else (False, found)
        decode = partial(self.tokenizer.decode, skip_special=skips)
        request.answers = [
            GeneratedAnswer(
                s, Detokenizer(decode, request.tokens), StopTexts(sampling.stop), hidden
            )
            for s in sequences
        ]
        for answer in request.answers:
            self._requests[answer.sequence] = (request, answer)

    def _apply(self, event: Event, request: EngineRequest, answer: GeneratedAnswer) -> None:
        if event.error is not None:
            raise event.error
        if event.sequence.sampling.echo and event.sequence.generated_tokens <= 1:
            request.echo(answer, self._reports, self.tokenizer)
        reason = event.finish_reason
        if event.sampled is not None:
            reason = answer.append(event.sampled, reason, self._reports)
            if reason and not event.finish_reason:
                self.engine.remove(event.sequence)
        if reason:
            answer.done = True
            del self._requests[event.sequence]
            form = event.sequence.constraint
            if isinstance(form, Form) and (problem := form.problem()):
                problem = f"constraint: the answer could not be brought to its end: {problem}"
                request.error = self._refused(problem, "constraint")
        if reason or (request.stream and answer.pending_text):
            request.send(answer, reason)


def _defaults(name: str, source: str) -> Mapping[str, Any]:
    """The sampling parameters that a checkpoint's author recommends. Logged, as they change the
    answers to all requests that set none. Reads a file."""
    from wherry.llm.engine.checkpoint import Checkpoint

    found = defaults_of(Checkpoint.find(source).generation_config())
    if found:
        log.info("defaults of generation_config.json", extra={"model": name, **found})
    return found
