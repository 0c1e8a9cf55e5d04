"""Which requests are traced?"""

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import sampling

from wherry.core.observability.otel.context import TraceContext
from wherry.core.observability.otel.tracing import TraceSampling

PARENT = TraceContext(2**64, 7)


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.0])
def test_new_traces_are_those_that_the_sdks_own_sampler_would_take(ratio: float) -> None:
    sampler = sampling.ParentBasedTraceIdRatio(ratio)
    ours = TraceSampling(sampler)
    assert (ours.is_usual, ours.ratio) == (True, ratio)
    for _ in range(100 if ratio else 0):
        taken = sampler.should_sample(None, ours.root().trace_id, "x")
        assert taken.decision is sampling.Decision.RECORD_AND_SAMPLE


def test_a_share_of_the_requests_without_a_parent_is_traced() -> None:
    ours = TraceSampling(sampling.ParentBasedTraceIdRatio(0.25))
    taken = sum(ours.child(None, "x", {}) is not None for _ in range(4000))
    assert 800 < taken < 1200  # nine deviations


def test_by_default_the_caller_decides() -> None:
    ours = TraceSampling(sampling.ParentBasedTraceIdRatio(0.0))
    child = ours.child(PARENT, "x", {})
    assert child is not None
    assert (child.trace_id, child.is_sampled) == (PARENT.trace_id, True)
    assert child.span_id != PARENT.span_id
    assert ours.child(TraceContext(2**64, 7, flags=0), "x", {}) is None


def test_a_sampler_that_does_not_look_at_parents_is_believed() -> None:
    assert TraceSampling(sampling.ALWAYS_OFF).child(PARENT, "x", {}) is None
    unsampled = TraceContext(2**64, 7, flags=0)
    child = TraceSampling(sampling.ALWAYS_ON).child(unsampled, "x", {})
    assert child is not None
    assert child.is_sampled
    # By the low half of the trace's id, which is 0 here, and the largest there.
    half = TraceSampling(sampling.TraceIdRatioBased(0.5))
    assert half.child(unsampled, "x", {}) is not None
    assert half.child(TraceContext(2**64 - 1, 7), "x", {}) is None


def test_another_sampler_is_asked_for_each_request() -> None:
    class Named(sampling.Sampler):
        def should_sample(self, *given: Any, **_: Any) -> sampling.SamplingResult:
            name: str = given[2]
            asked.append(name)
            takes = name == "wanted"
            decision = sampling.Decision.RECORD_AND_SAMPLE if takes else sampling.Decision.DROP
            return sampling.SamplingResult(decision, {"why": name})

        def get_description(self) -> str:
            return "Named"

    asked: list[str] = []
    ours = TraceSampling(Named())
    attributes: dict[str, Any] = {}
    assert ours.child(None, "other", attributes) is None
    assert ours.child(PARENT, "wanted", attributes) is not None
    assert (ours.is_usual, asked, attributes) == (False, ["other", "wanted"], {"why": "wanted"})


def test_ids_are_not_those_of_another_process() -> None:
    ids: Sequence[int] = [TraceSampling(sampling.ALWAYS_ON).root().trace_id for _ in range(3)]
    assert len(set(ids)) == 3
