"""How is one request of the runtime followed, through queue, batches and instances?"""

import threading

import pytest

import wherry
from tests.fakes import until
from wherry.core.observability.otel.context import SpanDraft
from wherry.core.observability.otel.tracing import Tracing
from wherry.core.runtime.runtime import Runtime
from wherry.testing.gated import GatedModel

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from wherry.core.observability.otel.spans import SpanSink
from wherry.core.observability.otel.tracing import TraceSampling


class Spans(SpanSink):
    """Takes drafts, as they are."""

    def __init__(self) -> None:
        self.all: list[SpanDraft] = []

    def start(self) -> None: ...
    def flush(self) -> None: ...
    def add(self, draft: SpanDraft) -> None:
        self.all.append(draft)

    def close(self, timeout: float) -> bool:
        return True

    def named(self, name: str) -> list[SpanDraft]:
        return [one for one in self.all if one.name == name]


def traced(runtime: Runtime, sampler: Sampler = ALWAYS_ON) -> Spans:
    spans = Spans()
    runtime.calls.tracing = Tracing(TraceSampling(sampler), spans, runtime.clock)
    return spans


@wherry.model
def picky(text: str) -> str:
    if text == "bad":
        raise ValueError("no")
    return text


def test_all_callers_of_a_batch_are_linked_to_it_and_it_is_to_them() -> None:
    gated = GatedModel(max_batch_size=4)
    with Runtime(gated) as runtime:
        spans = traced(runtime)
        callers = [
            threading.Thread(target=runtime.infer, args=("gated",), kwargs={"text": text})
            for text in "abc"
        ]
        callers[0].start()
        gated.wait_started()
        for caller in callers[1:]:
            caller.start()
        until(lambda: runtime.model("gated").runner.queued_requests == 2)
        gated.let_finish(2)
        for caller in callers:
            caller.join()
    alone, both = spans.named("batch gated")
    assert (len(alone.links), len(both.links)) == (1, 2)
    assert both.attributes["wherry.batch.rows"] == 2
    calls = {one.context.span_id for one in spans.named("infer gated")}
    assert {link.span_id for link in (*alone.links, *both.links)} == calls
    linked = [one.links[0].span_id for one in spans.named("execute")]
    assert sorted(linked) == sorted([alone.context.span_id, *[both.context.span_id] * 2])
    assert both.parent in [one.context for one in spans.named("execute")]


def test_what_the_model_has_failed_at_is_marked_with_its_text() -> None:
    with Runtime(picky) as runtime:
        spans = traced(runtime)
        with pytest.raises(wherry.ModelFailed):
            runtime.infer("picky", text="bad")
    (executed,), (call,) = spans.named("execute"), spans.named("infer picky")
    assert executed.error == call.error == "model 'picky' failed: ValueError: no"
    assert [event.name for event in call.events] == ["exception"]
    assert "Traceback" not in str(call.events)


def test_a_call_that_is_not_sampled_has_no_spans() -> None:
    with Runtime(picky) as runtime:
        spans = traced(runtime, ALWAYS_OFF)
        assert runtime.infer("picky", text="good") == "good"
    assert spans.all == []


def test_each_part_of_a_split_request_has_its_execution() -> None:
    @wherry.model(max_batch_size=2)
    def echo(text: list[str]) -> list[str]:
        return text

    with Runtime(echo) as runtime:
        spans = traced(runtime)
        runtime.infer_batch("echo", text=list("abcde"))
    assert [one.attributes["wherry.request.rows"] for one in spans.named("execute")] == [2, 2, 1]
    assert len(spans.named("queue")) == len(spans.named("batch echo")) == 3


class Twice(wherry.StepModel):
    """Answers each request in two steps."""

    max_batch_size = 2

    def start(self, n: int) -> list[int]:
        return [n, n]

    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        return [wherry.Step([left.pop()], done=not left) for left in active]


def test_a_request_of_a_model_of_steps_waits_and_runs_on_an_instance() -> None:
    with Runtime(Twice()) as runtime:
        spans = traced(runtime)
        assert list(runtime.stream("twice", n=2)) == [2, 2]
    (executed,), (waited,) = spans.named("execute"), spans.named("queue")
    assert executed.attributes["wherry.instance"] == "twice_0"
    assert waited.ended == executed.started <= executed.ended
