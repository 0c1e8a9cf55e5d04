"""How does a draft become a span of the SDK, or, for OTLP's exporters, the bytes of one?

The exporters of OpenTelemetry send ours as they send others: with their proxies, certificates,
compression and retries. Only their function that makes a message of spans is replaced, which takes
two thirds of what a traced request costs: spans that nobody has looked at, without events or an
error, are written as bytes; the rest they encode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from wherry.core.observability.otel.context import SAMPLED, SpanDraft, SpanKind, TraceContext

_EXPORTERS: Final = tuple(
    f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter" for protocol in ("http", "grpc")
)

# Fields of a Span by https://github.com/open-telemetry/opentelemetry-proto: a tag, and the length
# of the bytes where that is constant.
_IDS: Final = Struct("2s16s2s8s").pack
_TRACE, _SPAN, _PARENT, _NAME, _KIND = b"\x0a\x10", b"\x12\x08", b"\x22\x08", b"\x2a", b"\x30"
_TIMES: Final = Struct("<cQcQ").pack
_STARTED, _ENDED, _ATTRIBUTE, _SPAN_OF_SCOPE = b"\x39", b"\x41", b"\x4a", b"\x12"
#: Whether the parent is of another process, and that this is known.
_HERE, _REMOTE = b"\x85\x01\x00\x01\x00\x00", b"\x85\x01\x00\x03\x00\x00"
#: A link with two ids, and that it is known not to be of another process.
_LINK, _LINK_HERE = b"\x6a\x21", b"\x35\x00\x01\x00\x00"

#: Links of one span, at most, as is the SDK's default.
MOST_LINKS: Final = 128
_SAMPLED: Final = TraceFlags(SAMPLED)


class DraftedSpan(ReadableSpan):
    """A draft as the SDK's processors take it: what they look at is made when they do."""

    _is_made = False

    def __init__(
        self, draft: SpanDraft, wall: int, resource: Resource, scope: InstrumentationScope
    ) -> None:
        self._context = span_context(draft.context)
        self.draft, self.wall = draft, wall
        self._resource, self._instrumentation_scope = resource, scope
        self.started = wall + int(draft.started * 1e9)
        self.ended = max(self.started, wall + int(draft.ended * 1e9))

    @property
    def is_usual(self) -> bool:
        """Whether it has no events or error, and nothing of it has been looked at, or changed."""
        draft = self.draft
        is_touched = len(vars(self)) > 7  # those of __init__
        return not (is_touched or draft.events or draft.error is not None or draft.context.state)

    def __getattr__(self, name: str) -> Any:
        """The rest, once something of it is missed."""
        if name[:1] != "_" or self._is_made:
            raise AttributeError(name)
        changed = {**vars(self), "_is_made": True}
        draft, parent = self.draft, self.draft.parent
        code = StatusCode.UNSET if draft.error is None else StatusCode.ERROR
        super().__init__(
            draft.name,
            self._context,
            None if parent is None else span_context(parent, is_remote=draft.is_entry),
            resource=self._resource,
            attributes=draft.attributes,
            events=[
                Event(one.name, dict(one.attributes), self.wall + int(one.at * 1e9))
                for one in draft.events
            ],
            links=[Link(span_context(one)) for one in draft.links[:MOST_LINKS]],
            kind=trace.SpanKind[draft.kind.name],
            status=Status(code, draft.error),
            start_time=self.started,
            end_time=self.ended,
            instrumentation_scope=self._instrumentation_scope,
        )
        vars(self).update(changed)
        return getattr(self, name)


def span_context(context: TraceContext, *, is_remote: bool = False) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    flags = _SAMPLED if context.is_sampled else TraceFlags(0)
    return SpanContext(context.trace_id, context.span_id, is_remote, flags, state)


def context_with(context: TraceContext, *, is_remote: bool) -> Context:
    """A context of the API in which this span, which goes on elsewhere, is the current one."""
    span = trace.NonRecordingSpan(span_context(context, is_remote=is_remote))
    return trace.set_span_in_context(span, Context())


def send_encoded() -> None:
    """Have the exporters that are loaded by now take our bytes."""
    for name in _EXPORTERS:
        encode = getattr(module := sys.modules.get(name), "encode_spans", None)
        if encode is not None and encode.__module__ != __name__:
            module.encode_spans = _encoding(encode)  # type: ignore[union-attr]


def _encoding(encode: Callable[[Sequence[ReadableSpan]], Any]) -> Callable[..., Any]:
    def with_ours(spans: Sequence[ReadableSpan]) -> Any:
        others: list[ReadableSpan] = []
        ours: dict[tuple[int, int], tuple[ReadableSpan, list[bytes]]] = {}
        for span in spans:
            if (encoded := _usual(span)) is None:
                others.append(span)
            else:
                about = id(span.resource), id(span.instrumentation_scope)
                ours.setdefault(about, (span, []))[1].append(encoded)
        messages = [encode(others)] if others or not ours else []
        for first, fields in ours.values():
            messages.append(around := encode([first]))
            within = around.resource_spans[0].scope_spans[0]
            within.ClearField("spans")
            within.MergeFromString(b"".join(fields))
        for more in messages[1:]:  # of the program's own spans, or other resources
            messages[0].MergeFrom(more)
        return messages[0]

    return with_ours


def _usual(span: ReadableSpan) -> bytes | None:
    """The bytes of a span of ours, as a field of its scope; None: the exporter is to encode it."""
    if type(span) is not DraftedSpan or not span.is_usual:
        return None
    draft = span.draft
    parent, values = draft.parent, draft.attributes.values()
    above = b"" if parent is None else _PARENT + parent.span_id.to_bytes(8, "big")
    flags = _REMOTE if draft.is_entry and parent is not None else _HERE
    about = (*draft.attributes, *values, *map(type, values))
    try:
        constant = _constant(draft.name, draft.kind, about)
    except (TypeError, ValueError, KeyError):  # a list, a number or text too wild
        return None
    times = _TIMES(_STARTED, span.started, _ENDED, span.ended)
    links = [_LINK + _ids(link) + _LINK_HERE for link in draft.links[:MOST_LINKS]]
    return _field(
        _SPAN_OF_SCOPE, b"".join((_ids(draft.context), above, times, constant, flags, *links))
    )


def _ids(context: TraceContext) -> bytes:
    return _IDS(
        _TRACE, context.trace_id.to_bytes(16, "big"), _SPAN, context.span_id.to_bytes(8, "big")
    )


@lru_cache(1024)
def _constant(name: str, kind: SpanKind, about: tuple[Any, ...]) -> bytes:
    """What many spans have in common: `about` are the keys of their attributes, then the values,
    then their types, which keep 1 and True apart."""
    count = len(about) // 3
    attributes = map(_attribute, about[:count], about[count : 2 * count])
    return b"".join((_field(_NAME, name.encode()), _KIND, bytes((kind,)), *attributes))


@lru_cache(1024, typed=True)
def _attribute(key: str, value: Any) -> bytes:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
    pair = KeyValue(key=key, value=AnyValue(**{kind[type(value)]: value}))
    return _field(_ATTRIBUTE, pair.SerializeToString())


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _length(len(body)) + body


@lru_cache(1024)
def _length(number: int) -> bytes:
    """A base 128 varint."""
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128,)) + _length(number >> 7)
