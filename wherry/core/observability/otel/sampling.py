"""Which requests are traced?

The SDK's own samplers decide; the usual ones are read once from what they say of themselves, as to
ask them costs some 10 us for each request.
"""

from __future__ import annotations

import re
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

from wherry.core.observability.otel.context import SAMPLED, TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

_RATIO: Final = r"AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{([0-9.e-]+)\}"
_PLAIN: Final = re.compile(_RATIO)
_PARENT_BASED: Final = re.compile(
    rf"ParentBased\{{root:({_RATIO}),remoteParentSampled:AlwaysOnSampler,"
    r"remoteParentNotSampled:AlwaysOffSampler,localParentSampled:AlwaysOnSampler,"
    r"localParentNotSampled:AlwaysOffSampler\}"
)


class TraceSampling:
    """The decision for each request. Any thread."""

    def __init__(self, sampler: Sampler) -> None:
        #: Asked for each request, if it is an unusual one.
        self._sampler: Sampler | None = None
        #: Whether the ratio and the parent decide.
        self.is_usual = True
        #: The share of the requests without a parent that are traced.
        self.ratio = 1.0
        self._follows_parents = False
        random = Random(SystemRandom().getrandbits(256))
        self._bits, self._below = random.getrandbits, random.randrange
        #: A number in [0, 1): a request without a parent is traced if it is below `ratio`.
        self.draw = random.random
        description = sampler.get_description()
        if (found := _PARENT_BASED.fullmatch(description)) is not None:
            self._follows_parents = True
            self.ratio = _ratio(found[1], found[2])
        elif (found := _PLAIN.fullmatch(description)) is not None:
            self.ratio = _ratio(found[0], found[1])
        else:
            self._sampler, self.is_usual = sampler, False
        # As TraceIdRatioBased: other services with this ratio decide alike about a trace.
        self._bound = round(self.ratio * 2**64)

    def root(self) -> TraceContext:
        """A new trace, for a request that was drawn."""
        low = self._below(self._bound) if self._bound else 0
        return TraceContext((self._bits(64) << 64 | low) or 1, self.span_id())

    def span_id(self) -> int:
        return self._bits(64) or 1

    def child(
        self, parent: TraceContext | None, name: str, attributes: dict[str, Any]
    ) -> TraceContext | None:
        """The context of a span below `parent`, which another process or the caller's program has
        begun; None: it is not traced."""
        if self._sampler is not None:
            return self._decision(self._sampler, parent, name, attributes)
        if parent is None:
            return self.root() if self.draw() < self.ratio else None
        if self._follows_parents:
            is_traced = parent.is_sampled
        else:
            is_traced = parent.trace_id % 2**64 < self._bound
        if not is_traced:
            return None
        own = parent.of_span(self.span_id())
        return own if own.is_sampled else _sampled(own, own.state)

    def _decision(
        self,
        sampler: Sampler,
        parent: TraceContext | None,
        name: str,
        attributes: dict[str, Any],
    ) -> TraceContext | None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace.sampling import Decision

        from wherry.core.observability.otel.spans import context_with

        trace_id = self._bits(128) or 1 if parent is None else parent.trace_id
        parent_context = None if parent is None else context_with(parent, is_remote=True)
        result = sampler.should_sample(
            parent_context, trace_id, name, trace.SpanKind.SERVER, attributes, ()
        )
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        attributes.update(result.attributes or {})
        state = result.trace_state.to_header() if result.trace_state else ""
        own = TraceContext(trace_id, self.span_id())
        return _sampled(own if parent is None else parent.of_span(own.span_id), state)


def _sampled(context: TraceContext, state: str) -> TraceContext:
    return TraceContext(context.trace_id, context.span_id, SAMPLED, state, context.baggage)


def _ratio(name: str, ratio: str | None) -> float:
    if ratio is not None:
        return float(ratio)
    return 1.0 if name == "AlwaysOnSampler" else 0.0
