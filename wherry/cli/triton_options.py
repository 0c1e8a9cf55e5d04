"""How is a command line of tritonserver read as one of wherry?

An option that has a flag of ours is put in its words; one that changes nothing here is taken and
said so; an unknown one is left for the parser to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from wherry.server.options import OPTIONS

COMMANDS: Final = ("serve", "check", "config")

#: Flags of tritonserver that are another name for a flag of wherry.
SAME: Final = {
    "--model-store": "--model-repository",
    "--http-address": "--host",
    "--http-port": "--port",
    "--exit-timeout-secs": "--drain-timeout",
    "--http-max-input-size": "--max-body-size",
    "--grpc-header-forward-pattern": "--http-header-forward-pattern",
    "--response-cache-byte-size": "--cache-size",
}

_ONE_PORT = "metrics are at /metrics of the HTTP port"
_GRPC = "gRPC takes care of its connections by itself"
_NOT_HERE = "there is no such frontend"
_MEMORY = "no pool of memory has to be sized"
_LOG = "use --log-level"

#: Options that are accepted without effect, each with the reason.
WITHOUT_EFFECT: Final = {
    "--id": "the server is called wherry",
    "--allow-http": "HTTP is always on",
    "--reuse-http-port": "use --reuse-port, which is for every port",
    "--http-thread-count": "one event loop serves every connection",
    "--allow-grpc": "gRPC is on where --grpc-port is set",
    "--reuse-grpc-port": "use --reuse-port, which is for every port",
    "--grpc-address": "--host is the address of both",
    "--grpc-infer-response-compression-level": "use --grpc-compression",
    "--grpc-infer-allocation-pool-size": _GRPC,
    "--grpc-infer-thread-count": _GRPC,
    "--grpc-max-response-pool-size": _GRPC,
    "--grpc-keepalive-time": _GRPC,
    "--grpc-keepalive-timeout": _GRPC,
    "--grpc-keepalive-permit-without-calls": _GRPC,
    "--grpc-http2-max-pings-without-data": _GRPC,
    "--grpc-http2-min-recv-ping-interval-without-data": _GRPC,
    "--grpc-http2-max-ping-strikes": _GRPC,
    "--grpc-max-connection-age": _GRPC,
    "--grpc-max-connection-age-grace": _GRPC,
    "--allow-sagemaker": _NOT_HERE,
    "--sagemaker-port": _NOT_HERE,
    "--sagemaker-safe-port-range": _NOT_HERE,
    "--sagemaker-thread-count": _NOT_HERE,
    "--allow-vertex-ai": _NOT_HERE,
    "--vertex-ai-port": _NOT_HERE,
    "--vertex-ai-thread-count": _NOT_HERE,
    "--vertex-ai-default-model": _NOT_HERE,
    "--allow-metrics": _ONE_PORT,
    "--allow-gpu-metrics": _ONE_PORT,
    "--allow-cpu-metrics": _ONE_PORT,
    "--metrics-address": _ONE_PORT,
    "--metrics-interval-ms": "metrics are read when they are asked for",
    "--metrics-config": "histograms are always there",
    "--log-info": _LOG,
    "--log-warning": _LOG,
    "--log-error": _LOG,
    "--log-file": "send stderr to a file",
    "--backend-config": "backends take their settings from a model's parameters",
    "--repoagent-directory": "there are no repository agents",
    "--cache-directory": "there are no cache libraries",
    "--enable-peer-access": _MEMORY,
    "--pinned-memory-pool-byte-size": _MEMORY,
    "--cuda-memory-pool-byte-size": _MEMORY,
    "--cuda-virtual-address-size": _MEMORY,
    "--min-supported-compute-capability": "a model says itself what it needs",
    "--buffer-manager-thread-count": _MEMORY,
    "--host-policy": "instances are not bound to host policies",
    "--model-load-gpu-limit": "a model says itself what it needs",
    "--model-namespacing": "two models of one name are refused",
    "--strict-model-config": "use --disable-auto-complete-config",
}

_TRUTH: Final = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
_SWITCHES: Final = {option.flag for option in OPTIONS.values() if option.is_switch}


def in_our_words(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments with wherry's flags, and the flags without effect with their reasons."""
    waiting = list(reversed(arguments))
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments), []
    ours: list[str] = []
    ignored: list[tuple[str, str]] = []
    while waiting:
        word = waiting.pop()
        name, equals, value = word.partition("=")
        if name in _SPECIAL:
            value = value if equals else waiting.pop() if waiting else ""
            ours += _SPECIAL[name](value)
        elif name in WITHOUT_EFFECT and name not in _OURS:
            if not equals and waiting and not waiting[-1].startswith("-"):
                waiting.pop()
            ignored.append((name, WITHOUT_EFFECT[name]))
        elif name in _SWITCHES:
            if not equals and waiting and waiting[-1].lower() in _TRUTH:
                value = waiting.pop()
            ours += _switch(name, value, word)
        elif name in SAME:
            ours.append(SAME[name] + equals + value)
        else:
            ours.append(word)
    return ours, ignored


def _switch(name: str, value: str, word: str) -> list[str]:
    """--strict-readiness=false as --no-strict-readiness."""
    truth = _TRUTH.get(value.lower(), True if not value else None)
    if truth is None:
        return [word]  # the parser says what is wrong with it
    return [name if truth else "--no-" + name.removeprefix("--")]


def _verbose(value: str) -> list[str]:
    return [] if value.lower() in ("0", "false", "") else ["--log-level=debug"]


def _log_format(value: str) -> list[str]:
    """Theirs are for people, with two kinds of dates; ours are "human" and "json"."""
    value = value.lower()
    return [] if value in ("default", "iso8601") else [f"--log-format={value}"]


def _cache(value: str) -> list[str]:
    """local,size=1048576; other caches than the local one are not there."""
    kind, _, setting = value.partition(",")
    key, _, size = setting.partition("=")
    known = kind == "local" and key == "size"
    return [f"--cache-size={size}" if known else f"--cache-config={value}"]


#: Options whose value decides which flag of wherry they become.
_SPECIAL: Final[dict[str, Callable[[str], list[str]]]] = {
    "--cache-config": _cache,
    "--log-format": _log_format,
    "--log-verbose": _verbose,
    "--trace-file": lambda value: [f"--trace-config=triton,file={value}"],
    "--trace-level": lambda value: [f"--trace-config=level={value}"],
    "--trace-rate": lambda value: [f"--trace-config=rate={value}"],
    "--trace-count": lambda value: [f"--trace-config=count={value}"],
    "--trace-log-frequency": lambda value: [f"--trace-config=triton,log-frequency={value}"],
}
_OURS: Final = {option.flag for option in OPTIONS.values()}
