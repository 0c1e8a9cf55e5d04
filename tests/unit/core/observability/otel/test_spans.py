"""Does a span of the SDK hold what its draft has noted?"""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind as SdkSpanKind

from wherry.core.observability.otel.context import SpanDraft, SpanEvent, SpanKind, TraceContext
from wherry.core.observability.otel.spans import MOST_LINKS, SpanSink

ROOT = TraceContext(2**127 + 1, 2**63 + 1)
REMOTE = TraceContext(ROOT.trace_id, 3)


def sent(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> ReadableSpan:
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("wherry", "1.2")
    assert isinstance(tracer, Tracer)
    sink = SpanSink(tracer, "1.2", lambda: 0.0)
    own = {"kind": SpanKind.INTERNAL, "context": ROOT.of_span(7), "parent": ROOT, "started": 1.5}
    sink.add(SpanDraft(**{"name": "queue", **own, "ended": 1.75, **fields}))
    sink.flush()
    [span] = exporter.get_finished_spans()
    return span


def test_a_span_has_the_names_times_and_ids_of_its_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    span = sent(
        monkeypatch,
        attributes={"a": 1, "stop": ["a", "b"]},
        events=[SpanEvent("first response", 1.625, {"n": 1})],
    )
    assert span.instrumentation_scope is not None
    assert (span.name, span.instrumentation_scope.name) == ("queue", "wherry")
    assert (span.kind, span.context.span_id) == (SdkSpanKind.INTERNAL, 7)
    assert span.start_time == 10**18 + 1_500_000_000
    assert span.end_time == 10**18 + 1_750_000_000
    assert span.attributes == {"a": 1, "stop": ["a", "b"]}
    assert span.events[0].timestamp == 10**18 + 1_625_000_000
    assert span.status.is_unset
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.is_remote) == (ROOT.span_id, False)


def test_the_parent_of_an_entry_is_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    span = sent(monkeypatch, kind=SpanKind.SERVER, parent=REMOTE, is_entry=True)
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.is_remote) == (3, True)


def test_a_span_keeps_the_state_of_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, context=TraceContext(5, 6, state="a=b")).context.trace_state == {
        "a": "b"
    }


def test_an_error_without_a_message_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sent(monkeypatch, error="").status.is_ok


def test_a_span_never_ends_before_it_started_nor_has_links_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    span = sent(monkeypatch, ended=1.25, links=[REMOTE] * 200)
    assert span.end_time == span.start_time
    assert len(span.links) == MOST_LINKS
