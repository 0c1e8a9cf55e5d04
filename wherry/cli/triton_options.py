"""How is a command line of tritonserver read as one of wherry?

An option with a counterpart becomes that flag; one that changes nothing here is accepted with a
warning; an unknown one is left for the parser to refuse.
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

#: Options that are accepted without effect, by the reason.
_WITHOUT_EFFECT: Final = {
    "the server is called wherry": "--id",
    "HTTP is always on": "--allow-http",
    "use --reuse-port, which is for every port": "--reuse-http-port --reuse-grpc-port",
    "one event loop serves every connection": "--http-thread-count",
    "gRPC is on where --grpc-port is set": "--allow-grpc",
    "--host is the address of both": "--grpc-address",
    "use --grpc-compression": "--grpc-infer-response-compression-level",
    "gRPC takes care of its connections by itself":
        "--grpc-infer-allocation-pool-size --grpc-infer-thread-count "
        "--grpc-max-response-pool-size --grpc-keepalive-time --grpc-keepalive-timeout "
        "--grpc-keepalive-permit-without-calls --grpc-http2-max-pings-without-data "
        "--grpc-http2-min-recv-ping-interval-without-data --grpc-http2-max-ping-strikes "
        "--grpc-max-connection-age --grpc-max-connection-age-grace",
    "there is no such frontend":
        "--allow-sagemaker --sagemaker-port --sagemaker-safe-port-range "
        "--sagemaker-thread-count --allow-vertex-ai --vertex-ai-port --vertex-ai-thread-count "
        "--vertex-ai-default-model",
    "metrics are at /metrics of the HTTP port":
        "--allow-metrics --allow-gpu-metrics --allow-cpu-metrics --metrics-address",
    "metrics are read when they are asked for": "--metrics-interval-ms",
    "histograms are always there": "--metrics-config",
    "use --log-level": "--log-info --log-warning --log-error",
    "send stderr to a file": "--log-file",
    "backends take their settings from a model's parameters": "--backend-config",
    "there are no repository agents": "--repoagent-directory",
    "there are no cache libraries": "--cache-directory",
    "no pool of memory has to be sized":
        "--enable-peer-access --pinned-memory-pool-byte-size --cuda-memory-pool-byte-size "
        "--cuda-virtual-address-size --buffer-manager-thread-count",
    "a model says itself what it needs":
        "--min-supported-compute-capability --model-load-gpu-limit",
    "instances are not bound to host policies": "--host-policy",
    "two models of one name are refused": "--model-namespacing",
    "use --disable-auto-complete-config": "--strict-model-config",
}  # fmt: skip
#: The reason of each.
WITHOUT_EFFECT: Final = {
    name: why for why, names in _WITHOUT_EFFECT.items() for name in names.split()
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
