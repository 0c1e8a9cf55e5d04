"""How is a command line of tritonserver read as one of wherry?

An option with a counterpart becomes that flag; one that sets what holds here anyway is left out;
one that changes nothing here is left out with a warning. An unknown one is left for the parser to
refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from wherry.server.options import OPTIONS

COMMANDS: Final = ("serve", "check", "config")

SAME: Final = {
    "--model-store": "--model-repository",
    "--http-address": "--host",
    "--grpc-address": "--grpc-host",
    "--metrics-address": "--metrics-host",
    "--http-port": "--port",
    "--exit-timeout-secs": "--drain-timeout",
    "--http-max-input-size": "--max-body-size",
    "--response-cache-byte-size": "--cache-size",
}

#: Options that are accepted without effect, by the reason.
_WITHOUT_EFFECT: Final = {
    "one event loop serves every connection": "--http-thread-count",
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
    "the figures of this machine are among the metrics":
        "--allow-gpu-metrics --allow-cpu-metrics",
    "metrics are read when they are requested": "--metrics-interval-ms",
    "backends take their settings from a model's parameters": "--backend-config",
    "there are no repository agents": "--repoagent-directory",
    "there are no cache libraries": "--cache-directory",
    "no pool of memory has to be sized":
        "--enable-peer-access --pinned-memory-pool-byte-size --cuda-memory-pool-byte-size "
        "--cuda-virtual-address-size --buffer-manager-thread-count",
    "a model declares itself what it needs":
        "--min-supported-compute-capability --model-load-gpu-limit",
    "instances are not bound to host policies": "--host-policy",
    "a name that is in two repositories is served from neither": "--model-namespacing",
}  # fmt: skip
#: The reason of each.
WITHOUT_EFFECT: Final = {
    name: why for why, names in _WITHOUT_EFFECT.items() for name in names.split()
}

#: Switches of tritonserver with the value that holds here anyway; None: neither does.
_HOLDS: Final[dict[str, bool | None]] = {
    "--allow-sagemaker": False,
    "--allow-vertex-ai": False,
    "--allow-cpu-metrics": True,
    "--allow-gpu-metrics": None,
    "--enable-peer-access": None,
    "--grpc-keepalive-permit-without-calls": True,
    "--model-namespacing": False,
}
#: What the other switches of tritonserver become when they are on, and when they are off.
_BECOME: Final[dict[str, tuple[list[str], list[str]]]] = {
    "--allow-http": ([], ["--no-http"]),
    "--allow-metrics": ([], ["--disabled-api=metrics"]),
    "--log-info": ([], ["--log-off=info"]),
    "--log-warning": ([], ["--log-off=warning"]),
    "--log-error": ([], ["--log-off=error"]),
    "--reuse-http-port": (["--reuse-port"], []),
    "--reuse-grpc-port": (["--reuse-port"], []),
    "--strict-model-config": (["--disable-auto-complete-config"], []),
}
#: Options whose values may be written in capitals.
_ANY_CASE: Final = ("--model-control-mode", "--rate-limit")

#: The port of gRPC where only --allow-grpc requests it.
_GRPC_PORT: Final = "8001"

_TRUTH: Final = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
_SWITCHES: Final = {option.flag for option in OPTIONS.values() if option.is_switch}
_OURS: Final = {option.flag for option in OPTIONS.values()}


def in_our_words(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments with wherry's flags, and the flags without effect with their reasons."""
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments), []
    reading = _Reading(list(reversed(arguments)))
    while reading.waiting:
        reading.one()
    reading.end()
    return reading.ours, reading.ignored


@dataclass
class _Reading:
    """A command line that is being translated, from the last of `waiting` on."""

    waiting: list[str]
    ours: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    #: Of a switch that means something only beside others, the last value.
    grpc: bool | None = None

    def one(self) -> None:
        """Translate one option, or pass one word on."""
        word = self.waiting.pop()
        name, equals, value = word.partition("=")
        if name in _SWITCHES or name in _THEIR_SWITCHES:
            if not equals and self.waiting and self.waiting[-1].lower() in _TRUTH:
                value = self.waiting.pop()
            self._switch(name, value, word)
        elif name == "--backend-config":
            self._backend_config(value if equals else self._value())
        elif name in _SPECIAL:
            self.ours += _SPECIAL[name](value if equals else self._value())
        elif name in _ANY_CASE:
            self.ours.append(f"{name}={(value if equals else self._value()).lower()}")
        elif name in WITHOUT_EFFECT:
            if not equals and self.waiting and not self.waiting[-1].startswith("-"):
                self.waiting.pop()
            self._ignore(name)
        elif name in SAME:
            self.ours.append(SAME[name] + equals + value)
        else:
            self.ours.append(word)

    def end(self) -> None:
        ports = [word for word in self.ours if word.partition("=")[0] == "--grpc-port"]
        alone = "--no-http" in self.ours and self.grpc is None  # where gRPC is on by default
        if (self.grpc or alone) and not ports:
            self.ours.append(f"--grpc-port={_GRPC_PORT}")
        elif self.grpc is False:
            self.ours = _without("--grpc-port", self.ours)
        if "--disabled-api=metrics" in self.ours:  # nor does its port have to be free
            self.ours = _without("--metrics-port", self.ours)

    def _switch(self, name: str, value: str, word: str) -> None:
        """--strict-readiness=false as --no-strict-readiness."""
        truth = _TRUTH.get(value.lower(), True if not value else None)
        if truth is None:
            self.ours.append(word)  # the parser reports what is wrong with it
        elif name in _SWITCHES:
            self.ours.append(name if truth else "--no-" + name.removeprefix("--"))
        elif name == "--allow-grpc":
            self.grpc = truth
        elif name in _BECOME:
            words = _BECOME[name][not truth]
            self.ours += [one for one in words if one not in self.ours]
        elif truth != _HOLDS[name]:
            self._ignore(name)

    def _backend_config(self, value: str) -> None:
        """default-max-batch-size of all backends or of one; other settings have no effect."""
        setting, _, number = value.rpartition(",")[2].partition("=")
        if setting == "default-max-batch-size" and number != "0":
            self.ours.append(f"--default-max-batch-size={number}")
        else:
            self._ignore("--backend-config")

    def _value(self) -> str:
        return self.waiting.pop() if self.waiting else ""

    def _ignore(self, name: str) -> None:
        self.ignored.append((name, WITHOUT_EFFECT[name]))


_THEIR_SWITCHES: Final = {"--allow-grpc", *_HOLDS, *_BECOME}


def _without(flag: str, words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word.partition("=")[0] != flag:
            kept.append(word)
        skip = not skip and word == flag
    return kept


def _verbose(value: str) -> list[str]:
    return [] if value.lower() in ("0", "false", "off", "") else ["--log-level=debug"]


def _log_format(value: str) -> list[str]:
    """Theirs are for people, with two kinds of dates; ours are "human", "iso8601" and "json"."""
    value = value.lower()
    return [] if value == "default" else [f"--log-format={value}"]


def _compression(value: str) -> list[str]:
    levels = {"none": "none", "low": "gzip", "medium": "gzip", "high": "gzip"}
    return [f"--grpc-compression={levels.get(value.lower(), value)}"]


#: Options whose value decides which flag of wherry they become.
_SPECIAL: Final[dict[str, Callable[[str], list[str]]]] = {
    "--grpc-infer-response-compression-level": _compression,
    "--log-format": _log_format,
    "--log-verbose": _verbose,
    "--trace-file": lambda value: [f"--trace-config=triton,file={value}"],
    "--trace-level": lambda value: [f"--trace-config=level={value}"],
    "--trace-rate": lambda value: [f"--trace-config=rate={value}"],
    "--trace-count": lambda value: [f"--trace-config=count={value}"],
    "--trace-log-frequency": lambda value: [f"--trace-config=triton,log-frequency={value}"],
}
