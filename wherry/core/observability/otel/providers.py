"""What do the OTEL_ variables switch on, and whose provider is used?

    OTEL_TRACES_EXPORTER             otlp, console, none or the name of an installed exporter
    OTEL_EXPORTER_OTLP_ENDPOINT      an address; implies the exporter `otlp`

The SDK reads all others itself. A program that has set its own provider is traced by that one.
In a worker process a provider is made once the code of the model has loaded OpenTelemetry: a model
without spans pays for none of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from wherry.core.observability.otel.context import (
    TraceContext,
    context_of,
    current,
    enter,
    read_by_propagators,
)
from wherry.core.values.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from wherry.core.observability.otel.tracing import Tracing


log = logging.getLogger("wherry")

INSTALL: Final = "pip install 'wherry[otel]'"


def exporters_of(environ: Mapping[str, str]) -> list[str]:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if named:
        names = [name.strip() for name in named.split(",")]
        return [name for name in names if name and name != "none"]
    own, common = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    return ["otlp"] if environ.get(own) or environ.get(common) else []


def tracing_of(version: str, clock: Callable[[], float], *, serves: bool = True) -> Tracing | None:
    """The tracing of this process; None: it is off. With `serves` the variables may switch it on,
    else only a provider that the program has set. ConfigError for an exporter that is not there."""
    provider, names = own_provider(), list[str]()
    if provider is None:
        names = exporters_of(os.environ) if serves else []
        if not names or not _is_installed():
            return None
        provider = provider_of(names)
    from opentelemetry.sdk.trace import Tracer

    from wherry.core.observability.otel.spans import SpanSink
    from wherry.core.observability.otel.tracing import TraceSampling, Tracing

    tracer = provider.get_tracer("wherry", version)
    if not isinstance(tracer, Tracer):  # OTEL_SDK_DISABLED
        return None
    return Tracing(
        TraceSampling(tracer.sampler),
        SpanSink(tracer, version, clock),
        clock,
        read=_reader(os.environ.get("OTEL_PROPAGATORS", "tracecontext,baggage")),
        start=partial(start, provider, names),
        end=partial(shut_down, provider) if names else lambda _: None,
    )


def own_provider() -> TracerProvider | None:
    """The SDK's provider that this program has set; None: it has not."""
    if "opentelemetry.trace" not in sys.modules or "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def provider_of(names: Sequence[str]) -> TracerProvider:
    """A provider for these exporters, which `start` adds. ConfigError if one is not there."""
    from opentelemetry.sdk.trace import TracerProvider

    for name in names:
        exporter_kind(name)
    return TracerProvider(shutdown_on_exit=False)


def start(provider: TracerProvider, names: Sequence[str]) -> None:
    """Add the exporters to a provider, and start their threads. May read files."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    for name in names:
        made = exporter_kind(name)()
        at_once = name == "console"
        provider.add_span_processor((SimpleSpanProcessor if at_once else BatchSpanProcessor)(made))


def exporter_kind(name: str) -> Callable[[], Any]:
    from importlib.metadata import entry_points

    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or (
            os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
        )
        name = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}.get(protocol, name)
        if name == "otlp":
            raise ConfigError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is neither http/protobuf nor grpc"
            )
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        package = {"otlp_proto_grpc": "; pip install opentelemetry-exporter-otlp-proto-grpc"}
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: no exporter {name!r} is installed{package.get(name, '')}"
        )
    kind: Callable[[], Any] = found[0].load()
    return kind


def _is_installed() -> bool:
    try:
        if find_spec("opentelemetry.sdk") is not None:
            return True
    except ModuleNotFoundError:
        pass
    log.warning(f"OTEL_ variables enable traces, but OpenTelemetry is not installed: {INSTALL}")
    return False


def _reader(propagators: str) -> Callable[[Mapping[str, str]], TraceContext | None]:
    names = {name.strip() for name in propagators.split(",")}
    if names <= {"tracecontext", "baggage"} and "tracecontext" in names:
        return context_of
    return read_by_propagators


def shut_down(provider: TracerProvider, timeout: float) -> None:
    """Send the pending spans; after `timeout` seconds the rest is dropped."""
    thread = threading.Thread(target=provider.shutdown, name="wherry-otel-end", daemon=True)
    thread.start()
    thread.join(timeout)


#: Seconds to send the pending spans at the end.
FLUSH: Final = 3.0


class WorkerSpans:
    """The spans of one worker process. For its main thread."""

    def __init__(self) -> None:
        #: The provider that was made here.
        self._provider: TracerProvider | None = None
        self._is_set_up = False

    def set_up(self) -> None:
        """Make the provider, if the variables call for one and none exists."""
        if self._is_set_up or "opentelemetry.trace" not in sys.modules:
            return
        self._is_set_up = True
        names = exporters_of(os.environ)
        if not names or own_provider() is not None:
            return
        from opentelemetry import trace

        self._provider = provider_of(names)
        start(self._provider, names)
        trace.set_tracer_provider(self._provider)
        # A batch that is not traced has no spans: without this each would begin its own trace.
        enter(TraceContext(1, 1, flags=0))

    def run(self, headers: Mapping[str, str], call: Callable[..., None], *arguments: Any) -> None:
        self.set_up()
        if not self._is_set_up:
            call(*arguments)
            return
        with current(headers):
            call(*arguments)

    def close(self) -> None:
        """Send the pending spans. Blocks for FLUSH seconds at most."""
        if self._provider is not None:
            shut_down(self._provider, FLUSH)
