"""How does vLLM serve behind the same front? Its fields are mapped; the engine here is a fake.

vLLM is too large to be installed for these tests. The fake has the methods, parameters and fields
that its sources have (vllm_api.json), and takes and gives what vLLM 0.32 was seen to take and give
(`python -m benchmarks.llm_engines` runs the same adapter on the real one): one RequestOutput for
each of a request's answers, refusals that are not ValueErrors, a chosen token among its
alternatives, counts that stay as they were in the last step.
"""

import dataclasses
import enum
import functools
import json
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import wherry
from tests.unit.llm.engine import tiny, vllm_api
from wherry.core.models.model import Device
from wherry.core.values.errors import AdapterNotFound
from wherry.llm.engine import vllm_engine
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.vllm_engine import VLLM, _field_of

#: Any two tokens.
HEL, LO = 7, 8


class Kind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class ClientError(Exception):
    """vllm.exceptions.VLLMClientError, and its VLLMValidationError."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


def as_vllm(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a fake that is called as vLLM's own could be."""
    signature = vllm_api.signature(f"LLM{method.__qualname__}")

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return method(*args, **kwargs)

    return call


def engine_args(**given: Any) -> types.SimpleNamespace:
    """vllm.EngineArgs."""
    if unknown := given.keys() - vllm_api.fields("EngineArgs").keys():
        raise TypeError(f"EngineArgs has no {sorted(unknown)}")
    return types.SimpleNamespace(**given)


@dataclass
class Reasoning:
    """vllm.config.ReasoningConfig."""

    reasoning_start_str: str = ""
    reasoning_end_str: str = ""


@dataclass
class Lora:
    """vllm.lora.request.LoRARequest."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class Structured:
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in vars(self).values()) != 1:
            raise ClientError("use one kind of structured outputs constraint")


@dataclass
class Params:
    """vllm.SamplingParams, as far as it is used."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: Structured | None = None
    thinking_token_budget: int | None = None
    output_kind: Kind = Kind.CUMULATIVE


@dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str = ""


@dataclass
class Output:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[dict[int, Logprob]] | None


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[Output]
    finished: bool
    num_cached_tokens: int | None = 1


@dataclass
class Metric:
    name: str
    labels: dict[str, str]
    value: float


@dataclass
class Running:
    prompt: dict[str, Any]
    params: Params
    lora: Lora | None = None
    steps: int = 0


class Engine:
    """Each request gets "Hel", then "lo", for each of its n answers."""

    made: "list[Engine]" = []  # noqa: RUF012

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.log_stats = not getattr(arguments, "disable_log_stats", False)
        self.model_config = types.SimpleNamespace(
            max_model_len=64,
            get_vocab_size=lambda: 300,
            get_diff_sampling_param=lambda: {"top_p": 0.9},
        )
        self.added: list[Running] = []
        self.aborted: list[str] = []
        self.running: dict[str, Running] = {}
        self.generated = self.reads = 0
        self.ends_with = "stop"
        self.failure: Exception | None = None
        #: The adapters that it has, by their numbers.
        self.loras: dict[int, Lora] = {}
        self.tokenizer = tiny.tokenizer()
        Engine.made.append(self)

    @classmethod
    @as_vllm
    def from_engine_args(cls, engine_args: Any) -> "Engine":
        return cls(engine_args)

    @as_vllm
    def add_lora(self, lora_request: Lora) -> bool:
        if not getattr(self.arguments, "enable_lora", False):
            raise RuntimeError("LoRA is not enabled.")
        if "damaged" in lora_request.lora_path:
            raise ValueError(f"Loading lora {lora_request.lora_name} failed: it is damaged")
        new = lora_request.lora_int_id not in self.loras
        self.loras[lora_request.lora_int_id] = lora_request
        return new

    @as_vllm
    def remove_lora(self, lora_id: int) -> bool:
        return self.loras.pop(lora_id, None) is not None

    @as_vllm
    def get_tokenizer(self) -> Any:
        return self.tokenizer

    @as_vllm
    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    @as_vllm
    def add_request(
        self,
        request_id: str,
        prompt: dict[str, Any],
        params: Params,
        lora_request: Lora | None = None,
    ) -> str:
        assert prompt["type"] == "token"  # others are deprecated
        assert prompt.keys() <= vllm_api.fields("TokensInput").keys()
        assert lora_request is None or self.loras[lora_request.lora_int_id] is lora_request
        if params.thinking_token_budget is not None and not hasattr(
            self.arguments, "reasoning_config"
        ):
            raise ClientError("thinking_token_budget is set but reasoning_config is not configured")
        if max(prompt["prompt_token_ids"]) >= 300:
            raise ClientError(f"Token id {max(prompt['prompt_token_ids'])} is out of vocabulary")
        self.running[request_id] = Running(prompt, params, lora_request)
        self.added.append(self.running[request_id])
        return f"{request_id}-0123abcd"

    @as_vllm
    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    @as_vllm
    def step(self) -> list[RequestOutput]:
        if self.failure is not None:
            raise self.failure
        came = []
        for request_id, request in list(self.running.items()):
            request.steps += 1
            last = request.steps == 2 and request.params.max_tokens != 60
            if last:
                del self.running[request_id]
            for index in range(request.params.n):
                finished = last and index == request.params.n - 1
                prompt = request.prompt["prompt_token_ids"]
                output = self.output(request.params, index, last)
                came.append(RequestOutput(request_id, prompt, [output], finished))
        self.generated += len(came)
        return came

    def output(self, params: Params, index: int, last: bool) -> Output:
        text, token = ("lo", LO) if last else ("Hel", HEL)
        logprobs = None
        if params.logprobs is not None:
            best = {5: Logprob(-0.1, 1), 6: Logprob(-0.2, 2)}
            asked = dict(list(best.items())[: params.logprobs])
            logprobs = [{token: Logprob(-9.5, 40), **asked}]
        return Output(index, text, [token], self.ends_with if last else None, logprobs)

    @as_vllm
    def get_metrics(self) -> list[Metric]:
        self.reads += 1
        labels = {"model_name": self.arguments.served_model_name, "engine": "0"}
        return [
            Metric("vllm:num_requests_running", labels, 1.0),
            Metric("vllm:kv_cache_usage_perc", labels, 0.25),
            Metric("vllm:generation_tokens", labels, self.generated),
            Metric("vllm:generation_tokens", {**labels, "model_name": "another"}, 1e6),
            Metric("vllm:request_success", {**labels, "finished_reason": "stop"}, 1.0),
        ]


@dataclass
class Platform:
    cpu: bool = False

    def is_cpu(self) -> bool:
        return self.cpu


@pytest.mark.parametrize(
    ("fake", "name", "without"),
    [
        (Params, "SamplingParams", ""),
        (Structured, "StructuredOutputsParams", ""),
        (Lora, "LoRARequest", ""),
        (Reasoning, "ReasoningConfig", ""),
        (Logprob, "Logprob", ""),
        (Output, "CompletionOutput", ""),
        (RequestOutput, "RequestOutput.__init__", ""),
        (Metric, "Metric", "value"),
    ],
)
def test_the_fakes_have_only_fields_that_vllms_own_have(fake: Any, name: str, without: str) -> None:
    parts = name.partition(".")
    theirs = vllm_api.signature(name).parameters if parts[1] else vllm_api.fields(name)
    given = {field.name for field in dataclasses.fields(fake)} - {without}
    assert given <= theirs.keys()


def test_what_the_adapter_reads_of_vllm_is_there() -> None:
    assert {kind.name for kind in Kind} == vllm_api.fields("RequestOutputKind").keys()
    assert vllm_engine.GAUGES.keys() <= set(vllm_api.recorded()["metrics"])
    assert "value" in vllm_api.fields("Counter").keys() & vllm_api.fields("Gauge").keys()
    for name in ("get_vocab_size", "get_diff_sampling_param"):
        vllm_api.signature(f"ModelConfig.{name}").bind("self")
    assert "max_model_len" in vllm_api.fields("ModelConfig")
    vllm_api.signature("Platform.is_cpu").bind("self")
    assert "parameter" in vllm_api.signature("VLLMValidationError.__init__").parameters
    known = {*vllm_api.fields("SamplingParams"), *vllm_api.fields("TokensInput")}
    assert {*vllm_engine.OURS} - {"input_tokens"} <= known


def loaded(**engine: Any) -> VLLM:
    model = VLLM("org/Chat", name="chat", **engine)
    model.load(Device())
    return model


@dataclass
class Fake:
    """A model called chat over a fake of vLLM."""

    runtime: wherry.Runtime

    @property
    def engine(self) -> Engine:
        return Engine.made[-1]

    def deltas(self, **inputs: Any) -> list[dict[str, Any]]:
        return list(self.runtime.stream("chat", **inputs))


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what load() sets is taken back
        monkeypatch.delenv(name)
    words = types.SimpleNamespace(
        SamplingParams=Params, RequestOutputKind=Kind, StructuredOutputsParams=Structured
    )
    platform = Platform()
    fake: Any = types.ModuleType("vllm")
    fake.LLMEngine, fake.EngineArgs = Engine, engine_args
    fake.sampling_params = words
    lora: Any = types.ModuleType("vllm.lora.request")
    lora.LoRARequest = Lora
    config: Any = types.ModuleType("vllm.config")
    config.ReasoningConfig = Reasoning
    for module in (lora, config):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "vllm.lora", types.ModuleType("vllm.lora"))
    fake.exceptions = types.SimpleNamespace(VLLMClientError=ClientError)
    fake.platforms = types.SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return platform


@pytest.fixture
def vllm(platform: Platform) -> Iterator[Fake]:
    model = VLLM("org/Chat", name="chat", max_running=4, max_model_len=512)
    with wherry.Runtime(model) as runtime:
        fake = Fake(runtime)
        fake.engine.added.clear()  # the warm-up's
        yield fake


def test_its_pieces_are_an_llms(vllm: Fake) -> None:
    found = vllm.deltas(prompt="Hi")
    assert [delta["text"] for delta in found] == ["Hel", "lo"]
    assert [delta["token_ids"].tolist() for delta in found] == [[HEL], [LO]]
    assert [delta["finish_reason"] for delta in found] == ["", "stop"]
    assert [delta["logprobs"] for delta in found] == [[], []]
    assert [delta["usage"] for delta in found] == [
        {},
        {"prompt_tokens": 2, "completion_tokens": 2, "cached_tokens": 1},
    ]


def test_each_of_n_answers_comes_whole_though_vllm_sends_them_one_by_one(vllm: Fake) -> None:
    found = vllm.deltas(prompt="Hi", parameters={"n": 3})
    texts = {n: "".join(d["text"] for d in found if d["index"] == n) for n in range(3)}
    assert texts == {0: "Hello", 1: "Hello", 2: "Hello"}
    assert found[-1]["usage"]["completion_tokens"] == 6


def test_whole_answers_are_one_piece_each(vllm: Fake) -> None:
    found = vllm.deltas(prompt="Hi", parameters={"n": 2}, stream=False)
    assert [(delta["index"], delta["text"]) for delta in found] == [(0, "Hello"), (1, "Hello")]
    assert [delta["finish_reason"] for delta in found] == ["stop", "stop"]
    assert found[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("most", [None, 0, 7])
def test_a_bound_of_thoughts_is_vllm_s(
    platform: Platform, tmp_path: Path, most: int | None
) -> None:
    folder = tiny.make(tmp_path / "thinks")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# <think> and </think> #}")
    model = VLLM(folder, name="chat")
    model.load(Device())
    engine = Engine.made[-1]
    assert engine.arguments.reasoning_config == Reasoning("<think>", "</think>")
    model.start(prompt="Hi", parameters=Sampling(thinking_budget=most))
    (sent,) = (running.params for running in engine.added)
    assert sent.thinking_token_budget == most


def test_a_bound_of_thoughts_is_refused_by_its_name_where_vllm_knows_none(vllm: Fake) -> None:
    with pytest.raises(wherry.InvalidRequest, match="reasoning_config is not") as refused:
        vllm.deltas(prompt="Hi", parameters={"thinking_budget": 4})
    assert refused.value.field == "thinking_budget"


def test_the_parser_of_thoughts_that_is_set_is_vllms_alone(
    platform: Platform, tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path / "thinks")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# <think> and </think> #}")
    model = VLLM(folder, name="chat", reasoning_parser="qwen3")
    model.load(Device())
    arguments = vars(Engine.made[-1].arguments)
    assert arguments["reasoning_parser"] == "qwen3"
    assert "reasoning_config" not in arguments


@pytest.mark.parametrize(("asked", "named"), [(0, []), (1, [5]), (2, [5, 6])])
def test_as_many_alternatives_are_named_as_were_asked_for(
    vllm: Fake, asked: int, named: list[int]
) -> None:
    (said,) = vllm.deltas(prompt="Hi", parameters={"logprobs": asked})[0]["logprobs"]
    assert (said["id"], said["logprob"]) == (HEL, -9.5)
    assert bytes(said["bytes"]) == Tokenizer(tiny.tokenizer()).piece(HEL)[1]
    assert [top["id"] for top in said["top"]] == named


def test_wishes_go_to_vllm_by_its_own_names(vllm: Fake) -> None:
    wishes = {
        "max_tokens": 5, "temperature": 0.5, "top_k": 3, "stop": ["x"], "logit_bias": {"7": 1.5},
        "include_stop": True, "seed": -1, "constraint": {"choice": ["a", "b"]},
        "allowed_token_ids": [7, 8],
    }  # fmt: skip
    vllm.deltas(prompt="Hi", parameters=wishes)
    (sent,) = (running.params for running in vllm.engine.added)
    assert (sent.max_tokens, sent.temperature, sent.top_k) == (5, 0.5, 3)
    assert sent.seed == 2**63 - 1  # -1 would be none
    assert (sent.stop, sent.logit_bias) == (["x"], {7: 1.5})
    assert sent.allowed_token_ids == [7, 8]
    assert sent.top_p == 0.9  # the checkpoint's own
    assert sent.include_stop_str_in_output is True
    assert sent.structured_outputs == Structured(choice=["a", "b"])
    assert sent.output_kind is Kind.DELTA
    assert vars(vllm.engine.arguments) == {
        "model": "org/Chat", "served_model_name": "chat", "max_num_seqs": 4, "max_model_len": 512
    }  # fmt: skip


def test_vllm_gets_tokens_whatever_came(vllm: Fake) -> None:
    inner = tiny.tokenizer()
    vllm.deltas(prompt="Hi")
    vllm.deltas(token_ids=[4, 5])
    messages = [{"role": "user", "content": "Hi"}]
    vllm.deltas(messages=messages)
    text = inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert [running.prompt["prompt_token_ids"] for running in vllm.engine.added] == [
        inner.encode("Hi"), [4, 5], inner.encode(text, add_special_tokens=False)
    ]  # fmt: skip


def test_a_prompt_is_truncated_before_vllm_gets_it(vllm: Fake) -> None:
    for side in ("left", "right"):
        cut = {"truncate_prompt": 2, "truncation_side": side}
        vllm.deltas(token_ids=[4, 5, 6], parameters=cut)
    assert [running.prompt["prompt_token_ids"] for running in vllm.engine.added] == [[5, 6], [4, 5]]


def test_tokens_and_texts_are_told_without_vllm(vllm: Fake) -> None:
    inner = tiny.tokenizer()
    (counted,) = vllm.deltas(prompt="Hi", task="tokenize")
    assert [*counted["token_ids"]] == inner.encode("Hi")
    assert counted["usage"]["prompt_tokens"] == 2
    messages = [{"role": "user", "content": "Hi"}]
    (counted,) = vllm.deltas(messages=messages, task="tokenize")
    text = inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert [*counted["token_ids"]] == inner.encode(text, add_special_tokens=False)
    (counted,) = vllm.deltas(task="tokenize")
    assert not len(counted["token_ids"])
    (told,) = vllm.deltas(token_ids=inner.encode("Hi"), task="detokenize")
    assert told["text"] == "Hi"
    for inputs in (
        {"task": "translate", "prompt": "Hi"},
        {"task": "detokenize", "token_ids": [-1]},
    ):
        with pytest.raises(wherry.InvalidRequest):
            vllm.deltas(**inputs)
    assert not vllm.engine.added


def test_a_chat_tells_once_how_its_answer_is_to_be_read(vllm: Fake) -> None:
    chat = vllm.deltas(messages=[{"role": "user", "content": "Hi"}], parameters={"n": 2})
    style = {"tools": "hermes", "thoughts": "none", "opened": False}
    assert [delta["details"].get("style") for delta in chat] == [style, None, None, None]
    assert not any(delta["details"] for delta in vllm.deltas(prompt="Hi"))


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"token_ids": [4, 999]}, "model 'chat': Token id 999 is out of vocabulary"),
        ({}, "give one of"),
        ({"prompt": "a", "parameters": {"top_p": 0}}, "top_p must be above 0"),
        ({"prompt": "a", "parameters": {"stop_token_ids": [300]}}, "between 0 and 299"),
        ({"prompt": "a", "parameters": {"echo": True}}, "echo is not supported by vLLM's adapter"),
        ({"prompt": "a", "parameters": {"prompt_logprobs": 0}}, "prompt_logprobs is not supported"),
        ({"prompt": "x" * 100_000}, "more than 64 tokens can hold"),
        ({"token_ids": [4] * 64}, "maximum context length is 64 tokens"),
        (
            {"messages": [{"role": "user", "content": "a"}], "template": {"chat_template": "x"}},
            "'chat_template' is not for a request to set",
        ),
    ],
)
def test_what_it_refuses_is_the_callers_fault(
    vllm: Fake, inputs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(wherry.InvalidRequest, match=problem):
        vllm.deltas(**inputs)


def test_what_vllm_refuses_names_the_field_that_it_means(vllm: Fake) -> None:
    with pytest.raises(wherry.InvalidRequest) as refused:
        vllm.deltas(token_ids=[4, 999])
    assert refused.value.field == "token_ids"
    assert _field_of(ValueError("Grammar error: Invalid type: wonder")) == "constraint"
    assert _field_of(ValueError("n must be 1 when using greedy sampling, got 2.")) is None
    assert _field_of(ClientError("too high", parameter="temperature")) == "temperature"
    named = ClientError("too high", parameter="thinking_token_budget")
    assert _field_of(named) == "thinking_budget"


def test_one_who_leaves_is_aborted(vllm: Fake) -> None:
    stream = vllm.runtime.stream("chat", prompt="a", parameters={"max_tokens": 60})
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    vllm.deltas(prompt="b")  # after it, the step in which the first left is over
    assert len(vllm.engine.aborted) == 1
    assert not vllm.engine.running


def test_an_answer_that_vllm_gives_up_is_an_error_and_not_an_end(vllm: Fake) -> None:
    vllm.engine.ends_with = "error"
    with pytest.raises(wherry.ModelFailed, match="vLLM ended it: error"):
        vllm.deltas(prompt="Hi")
    vllm.engine.ends_with = "stop"
    assert len(vllm.deltas(prompt="Hi")) == 2


def test_an_engine_that_fails_is_replaced(vllm: Fake) -> None:
    first = vllm.engine
    first.failure = RuntimeError("CUDA error: device-side assert triggered")
    assert len(vllm.deltas(prompt="Hi")) == 2  # nothing had come yet: it was tried once more
    assert vllm.engine is not first


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock by which vLLM's numbers are read."""
    now = [100.0]
    monkeypatch.setattr(vllm_engine, "monotonic", lambda: now[0])
    return now


def test_its_numbers_are_vllms_and_are_read_once_a_second(
    platform: Platform, now: list[float]
) -> None:
    model = loaded()
    request = model.start(prompt="Hi", parameters=Sampling(max_tokens=60))
    for _ in range(5):
        model.step([request])
        gauges = model.gauges()
    assert gauges == {"running": 1.0, "kv_cache_usage": 0.25, "generation_tokens_total": 1.0}
    now[0] += 1.0
    assert model.gauges()["generation_tokens_total"] == 5.0
    assert Engine.made[-1].reads == 2


def test_nobody_runs_after_the_last_step(platform: Platform, now: list[float]) -> None:
    model = loaded()
    request = model.start(prompt="Hi")
    while Engine.made[-1].running:
        model.step([request])
        gauges = model.gauges()
    assert (gauges["running"], gauges["waiting"], gauges["kv_cache_usage"]) == (0.0, 0.0, 0.0)
    assert gauges["generation_tokens_total"] == 2.0


def test_without_vllms_statistics_there_are_none_to_read(platform: Platform) -> None:
    model = loaded(disable_log_stats=True)
    model.step([model.start(prompt="Hi")])
    assert model.gauges() == {}
    assert Engine.made[-1].reads == 0


@pytest.mark.parametrize("cpu", [True, False])
def test_no_process_of_vllms_outlives_the_worker(platform: Platform, cpu: bool) -> None:
    platform.cpu = cpu
    with wherry.Runtime(VLLM("org/Chat", name="chat")):
        arguments = vars(Engine.made[-1].arguments)
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert arguments.get("distributed_executor_backend") == ("mp" if cpu else None)


# Adapters


def adapter(folder: Path, rank: int = 8) -> None:
    """Files of an adapter that are read here; its weights are read by vLLM."""
    folder.mkdir(exist_ok=True)
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    save_file({"a": torch.zeros(rank)}, folder / "adapter_model.safetensors")


@dataclass
class Adapted:
    """A model with one adapter that is named, and a folder of others."""

    model: VLLM
    folder: Path

    @property
    def engine(self) -> Engine:
        return Engine.made[-1]

    def ask(self, name: str, **parameters: Any) -> Any:
        """A request with an adapter, and vLLM's words for it."""
        request = self.model.start(prompt="Hi", parameters=Sampling(adapter=name, **parameters))
        return request, self.engine.added[-1].lora


@pytest.fixture
def adapted(platform: Platform, tmp_path: Path) -> Adapted:
    adapter(tmp_path / "sql", rank=24)
    (tmp_path / "more").mkdir()
    model = VLLM(
        "org/Chat",
        name="chat",
        adapters={"sql": tmp_path / "sql"},
        adapter_folder=str(tmp_path / "more"),
    )
    model.load(Device())
    return Adapted(model, tmp_path)


def test_an_adapter_is_loaded_once_and_named_by_each_of_its_requests(adapted: Adapted) -> None:
    _, first = adapted.ask("sql")
    _, second = adapted.ask("sql")
    _, none = adapted.ask("")
    assert first is second
    assert none is None
    assert (first.lora_name, first.lora_int_id) == ("sql.1", 1)
    assert first.lora_path == str(adapted.folder / "sql")
    assert adapted.engine.loras == {1: first}
    arguments = vars(adapted.engine.arguments)
    room = {name: arguments[name] for name in ("enable_lora", "max_lora_rank", "max_loras")}
    assert room == {"enable_lora": True, "max_lora_rank": 32, "max_loras": 4}


def test_adapters_come_and_go_while_it_is_served(adapted: Adapted) -> None:
    store = adapted.model.adapters
    assert adapted.model.variant_store is store
    with pytest.raises(AdapterNotFound):
        adapted.ask("law")
    adapter(adapted.folder / "more/law")
    assert store.names() == ["law", "sql"]
    request, lora = adapted.ask("law", max_tokens=60)
    assert lora.lora_path == str(adapted.folder / "more/law")
    shutil.rmtree(adapted.folder / "more/law")
    with pytest.raises(AdapterNotFound):
        adapted.ask("law")
    adapted.model.step([request])
    assert lora.lora_int_id in adapted.engine.loras  # it runs on
    adapted.model.stop(request)
    adapted.model.step([])
    assert not adapted.engine.loras


def test_files_that_change_are_another_adapter(adapted: Adapted) -> None:
    """vLLM keeps what it has computed of a prefix by an adapter's name."""
    old_request, old = adapted.ask("sql", max_tokens=60)
    adapter(adapted.folder / "sql", rank=8)
    _, new = adapted.ask("sql")
    assert old.lora_name != new.lora_name
    assert old.lora_int_id != new.lora_int_id
    adapted.model.step([old_request])
    assert adapted.engine.loras.keys() == {old.lora_int_id, new.lora_int_id}
    adapted.model.stop(old_request)
    adapted.model.step([])
    assert adapted.engine.loras.keys() == {new.lora_int_id}


def test_an_adapter_that_vllm_cannot_read_is_refused_and_ends_nothing(adapted: Adapted) -> None:
    adapter(adapted.folder / "more" / "damaged")
    for _ in range(2):
        with pytest.raises(wherry.InvalidRequest, match=r"does not load it: .*damaged") as refused:
            adapted.ask("damaged")
        assert refused.value.field == "adapter"
    assert not adapted.engine.loras
    adapted.ask("sql")


def test_a_model_without_adapters_has_none_and_vllm_no_room_for_them(vllm: Fake) -> None:
    with pytest.raises(AdapterNotFound):
        vllm.deltas(prompt="Hi", parameters={"adapter": "sql"})
    assert "enable_lora" not in vars(vllm.engine.arguments)
