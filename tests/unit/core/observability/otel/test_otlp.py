"""Do the exporters of OpenTelemetry send our spans as they would have encoded them?"""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from wherry.core.observability.otel.context import SpanDraft, SpanEvent, SpanKind, TraceContext
from wherry.core.observability.otel.otlp import DraftedSpan, send_encoded

RESOURCE = Resource({"service.name": "greeter"})
SCOPE = InstrumentationScope("wherry", "1.2")
ROOT = TraceContext(2**127 + 1, 2**63 + 1)
REMOTE = TraceContext(ROOT.trace_id, 3)

Encode = Callable[[list[Any]], Any]


def span(name: str = "queue", **fields: Any) -> DraftedSpan:
    own = {"kind": SpanKind.INTERNAL, "context": ROOT.of_span(7), "parent": ROOT, "started": 1.5}
    return DraftedSpan(SpanDraft(name, **{**own, "ended": 1.75, **fields}), 10**18, RESOURCE, SCOPE)


@pytest.fixture
def encode(monkeypatch: pytest.MonkeyPatch) -> Encode:
    """What the exporter encodes by, once it sends spans as ours."""
    monkeypatch.setattr(trace_exporter, "encode_spans", encode_spans)
    send_encoded()
    ours: Encode = vars(trace_exporter)["encode_spans"]
    assert ours is not encode_spans
    return ours


def spans_in(message: Any) -> list[Any]:
    """The spans, of which an empty status is none."""
    found = [
        one
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for one in scope.spans
    ]
    for one in found:
        if not one.status.code:
            one.ClearField("status")
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "POST /v2", "kind": SpanKind.SERVER, "parent": None, "is_entry": True},
        {"kind": SpanKind.SERVER, "parent": REMOTE, "is_entry": True},
        {"kind": SpanKind.CLIENT, "name": "n" * 70_000},
        {"attributes": {"a": "ä" * 200, "b": 1, "c": True, "d": 1.0, "e": -(2**63)}},
        {"attributes": {"a": "", "b": True, "c": 1.0, "d": 1, "e": 0}},
        {"links": [REMOTE] * 200},
        {"ended": 1.25},
        {"error": ""},
        {"events": [SpanEvent("first response", 1.6, {"n": 1})]},
        {"context": TraceContext(5, 6, state="a=b")},
        {"attributes": {"stop": ["a", "b"]}},
        {"attributes": {"big": 2**64}},
    ],
)
def test_a_span_is_sent_as_its_exporter_would_encode_it(
    encode: Encode, fields: dict[str, Any]
) -> None:
    for _ in range(2):  # from its cache, too
        found, expected = encode([span(**fields)]), encode_spans([span(**fields)])
        assert spans_in(found) == spans_in(expected)
        assert found == expected


def test_what_a_processor_has_changed_is_sent(encode: Encode) -> None:
    changed, renamed = span(attributes={"secret": "abc"}), span()
    assert changed.attributes == {"secret": "abc"}
    vars(changed)["_attributes"] = {}
    vars(renamed)["_name"] = "other"
    found = spans_in(encode([changed, renamed]))
    assert [(one.name, len(one.attributes)) for one in found] == [("queue", 0), ("other", 0)]


def test_spans_of_the_program_are_sent_beside_ours(encode: Encode) -> None:
    with TracerProvider(resource=RESOURCE).get_tracer("mine").start_as_current_span("of it") as its:
        pass
    other = DraftedSpan(span("other").draft, 0, Resource({"service.name": "b"}), SCOPE)
    message = encode([span("first"), its, other, span("second")])
    names = {
        (scope.scope.name, resource.resource.attributes[0].value.string_value): [
            one.name for one in scope.spans
        ]
        for resource in message.resource_spans
        for scope in resource.scope_spans
    }
    assert names == {
        ("mine", "greeter"): ["of it"],
        ("wherry", "greeter"): ["first", "second"],
        ("wherry", "b"): ["other"],
    }
