"""Which settings of the log and of traces can clients read and change while the server runs?

Values as Triton's protocols carry them, for any frontend. They take effect at once. A model has
trace settings of its own for what a client has set of them, and the server's for the rest. The
trace file can be set only when the server starts: without one nothing is traced.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wherry.core.api import (
    ConfigError,
    HumanFormatter,
    InvalidRequest,
    JsonFormatter,
    Tag,
    Unsupported,
    formatter_of,
    severities,
)

TRACE_LEVELS: Final = ("OFF", "TIMESTAMPS", "TENSORS")
#: As after a start: text, as the protocol has it, except for the levels.
TRACE_DEFAULTS: Final[dict[str, Any]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
TRACE_MODES: Final = ("triton", "opentelemetry")
#: What only the start of the server decides.
_AT_START: Final = {
    "trace_file": ("trace file location", "triton,file=PATH"),
    "trace_mode": ("trace mode", "mode=MODE"),
}
#: What the command line may call a level, in small letters.
_LEVELS: Final = {
    **dict.fromkeys(("off", "false"), "OFF"),
    **dict.fromkeys(("timestamps", "on", "true", "min", "max"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
#: What --trace-config opentelemetry,NAME=VALUE sets for the SDK.
_VARIABLES: Final = {
    "url": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "resource": "OTEL_RESOURCE_ATTRIBUTES",
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}
_LEAST: Final = {"trace_rate": 0, "trace_count": -1, "log_frequency": 0}


class Sampler:
    """Chooses the requests that are traced under one setting, until that is changed.

    Under the lock of its settings, but for what is constant, and what Traces keeps here.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.level: list[str] = values["trace_level"]
        self.rate = int(values["trace_rate"])
        #: The most traces of one file; 0: no limit.
        self.log_frequency = int(values["log_frequency"])
        #: Traces that there still will be; -1: any number.
        self.left = int(values["trace_count"])
        self.is_counted = self.left >= 0
        self.seen = 0
        #: Under the lock of Traces: requests on their way, traces that are not written yet, and
        #: whether another setting holds now.
        self.open = 0
        self.kept: list[str] = []
        self.is_replaced = False

    @property
    def is_on(self) -> bool:
        return "TIMESTAMPS" in self.level and self.rate > 0

    def sample(self) -> bool:
        """Whether the request that comes now is traced: it counts."""
        if not self.is_on or not self.left:
            return False
        self.seen += 1
        if self.seen % self.rate:
            return False
        if self.left > 0:
            self.left -= 1
        return True


class TraceSettings:
    """Triton's trace settings, of the server and of its models. Safe from any thread.

    `config` is what tritonserver's --trace-config takes: "triton,file=PATH", "level=TIMESTAMPS",
    "rate=100".
    """

    def __init__(self, config: Sequence[str] = ()) -> None:
        self._initial = {**TRACE_DEFAULTS, **_trace_config(config)[0]}
        self.file: str = self._initial["trace_file"]
        self._own: dict[str, Any] = {}
        self._of_models: dict[str, dict[str, Any]] = {}
        self._sampler = Sampler(self._initial)
        self._samplers: dict[str, Sampler] = {}
        self._lock = threading.Lock()
        #: Called with a sampler that samples no more, as its settings have been changed.
        self.on_change: Callable[[Sampler], None] = lambda sampler: None
        self.on = self._is_on()

    def sample(self, model: str) -> Sampler | None:
        """The sampler by which the request that comes now is traced, which counts; None: it is
        not."""
        with self._lock:
            sampler = self._samplers.get(model, self._sampler)
            return sampler if sampler.sample() else None

    def values(self, model: str | None = None) -> dict[str, Any]:
        """Return the settings of the server, or of a model: its own, else the server's."""
        with self._lock:
            return self._values(model)

    def update(self, changes: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
        """Make all of these changes or, if one is wrong, none. Returns all values.
        None goes back to what holds without it. InvalidRequest for what is not a setting."""
        checked = {name: _checked_trace_setting(name, value) for name, value in changes.items()}
        if checked and self._initial["trace_mode"] == "opentelemetry":
            raise Unsupported(
                "trace settings can not be updated in mode opentelemetry: the OTEL_ variables and"
                " --trace-config decide when the server starts"
            )
        if checked.get("trace_level") not in (None, ["OFF"]) and not self.file:
            raise InvalidRequest(
                "Attempting to set invalid trace setting :trace file name is not given",
                more="; start the server with --trace-config triton,file=PATH",
            )
        with self._lock:
            ended = self._change(checked, model) if checked else []
            self.on = self._is_on()
            values = self._values(model)
        for sampler in ended:
            self.on_change(sampler)
        return values

    def _change(self, checked: Mapping[str, Any], model: str | None) -> list[Sampler]:
        """The samplers that are replaced: those of the models with the server's."""
        own = self._own if model is None else self._of_models.setdefault(model, {})
        explicit = {name: value for name, value in checked.items() if value is not None}
        own.update(explicit)
        for name in checked.keys() - explicit.keys():
            own.pop(name, None)
        ended: list[Sampler] = []
        if model is None:
            ended.append(self._sampler)
            left = {"trace_count": str(self._sampler.left)} if "trace_count" in own else {}
            self._sampler = Sampler({**self._initial, **own, **left, **explicit})
        for name in list(self._of_models) if model is None else [model]:
            before = self._samplers.pop(name, None)
            if before is not None:
                ended.append(before)
            own = self._of_models[name]
            if not own:
                del self._of_models[name]
                continue
            values = {**self._values(None), **own}
            if before is not None and "trace_count" in own:
                values["trace_count"] = str(before.left)
            self._samplers[name] = Sampler(values if model is None else {**values, **explicit})
        return ended

    def _is_on(self) -> bool:
        return bool(self.file) and any(
            sampler.is_on for sampler in (self._sampler, *self._samplers.values())
        )

    def _values(self, model: str | None) -> dict[str, Any]:
        own = self._of_models.get(model, {}) if model is not None else {}
        sampler = self._sampler if model is None else self._samplers.get(model, self._sampler)
        left = {"trace_count": str(sampler.left)}
        return {**self._initial, **self._own, **own, **left}


def _checked_trace_setting(name: str, value: Any) -> Any:
    if name not in TRACE_DEFAULTS:
        names = ", ".join(TRACE_DEFAULTS)
        raise InvalidRequest(f"unknown trace setting '{name}'; known are {names}")
    if name in _AT_START:
        if value is not None and value != TRACE_DEFAULTS[name]:
            what, how = _AT_START[name]
            raise Unsupported(
                f"{what} can not be updated through network protocol",
                more=f"; start the server with --trace-config {how}",
            )
        return None
    if value is None:
        return None
    if name == "trace_level":
        levels = [value] if isinstance(value, str) else value
        known = isinstance(levels, list) and levels and all(one in TRACE_LEVELS for one in levels)
        if not known:
            problem = f"trace_level must be a list of {', '.join(TRACE_LEVELS)}"
            raise InvalidRequest(problem, tag=Tag.JSON)
        return _in_order(one for one in levels if one != "OFF") or ["OFF"]
    try:
        number = int(value) if type(value) in (str, int) else None
    except ValueError:
        number = None
    if number is None or not _LEAST[name] <= number < 2**63:
        raise InvalidRequest(f"{name} must be a whole number from {_LEAST[name]} up, as text")
    return str(number)


def _in_order(levels: Iterable[str]) -> list[str]:
    """The levels, each once: they are a set, which Triton writes in this order."""
    chosen = set(levels)
    return [level for level in TRACE_LEVELS if level in chosen]


def _trace_config(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings that a server starts with by --trace-config, and OpenTelemetry's variables."""
    settings: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for word in words:
        mode, comma, rest = word.partition(",")
        key, equals, value = (rest if comma else word).partition("=")
        kind = mode if comma else value.lower() if key == "mode" else "triton"
        name = "log_frequency" if key == "log-frequency" else f"trace_{key}"
        if kind not in TRACE_MODES:
            known = " and ".join(TRACE_MODES)
            raise ConfigError(f"trace_config {word!r}: the modes are {known}")
        if key == "mode":
            settings[name] = kind
        elif kind == "opentelemetry":
            if (variable := _VARIABLES.get(key)) is None:
                known = ", ".join(_VARIABLES)
                raise ConfigError(f"trace_config {word!r}: the settings are {known}")
            both = key == "resource" and variable in variables
            variables[variable] = f"{variables[variable]},{value}" if both else value
        elif not equals or name not in TRACE_DEFAULTS:
            known = "file, level, rate, count and log-frequency"
            raise ConfigError(f"trace_config {word!r}: the settings are {known}")
        elif name == "trace_file":
            settings[name] = value
        else:
            try:
                if name == "trace_level":
                    value = _LEVELS.get(value.lower(), value)
                checked = _checked_trace_setting(name, value)
            except InvalidRequest as error:
                raise ConfigError(f"trace_config {word!r}: {error}") from None
            if name == "trace_level":  # it may be repeated; OFF is stronger
                levels = [*settings.get(name, ()), *checked]
                checked = ["OFF"] if "OFF" in levels else _in_order(levels)
            settings[name] = checked
    if settings.get("trace_mode") == "opentelemetry":
        settings["trace_file"] = ""
    return settings, variables


def environment_of(words: Sequence[str]) -> dict[str, str]:
    """The OTEL_ variables that --trace-config means in its mode of OpenTelemetry; none in another
    mode. ConfigError for a setting that there is not."""
    settings, variables = _trace_config(words)
    found = {**TRACE_DEFAULTS, **settings}
    if found["trace_mode"] != "opentelemetry" or found["trace_level"] == ["OFF"]:
        return {}
    url = variables.get(_VARIABLES["url"], "localhost:4318/v1/traces")
    variables[_VARIABLES["url"]] = url if "://" in url else f"http://{url}"
    variables["OTEL_TRACES_EXPORTER"] = "otlp"
    variables["OTEL_TRACES_SAMPLER"] = "parentbased_always_off"  # only what its caller traces
    if rate := int(found["trace_rate"]):
        variables["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        variables["OTEL_TRACES_SAMPLER_ARG"] = f"{1 / rate:.6g}"
    return variables


log = logging.getLogger("wherry")

SEVERITIES: Final = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
#: Triton's two, and ours.
LOG_FORMATS: Final = ("default", "ISO8601", "json")
_SILENT: Final = logging.CRITICAL + 1


class LogSettings:
    """The log of this process's servers, as a switch for each severity.

    Levels are those of the logger "wherry"; a program's other loggers stay as they are. The format
    can be changed where the program's log is wherry's (`wherry serve`).
    """

    def __init__(self) -> None:
        self._verbose_level = 1
        self._lock = threading.Lock()

    def values(self) -> dict[str, bool | int | str]:
        level = log.getEffectiveLevel()
        switches = {
            name: severity >= level and severity not in severities().off
            for name, severity in SEVERITIES.items()
        }
        return {
            "log_file": _log_file(),
            **switches,
            "log_verbose_level": self._verbose_level if level <= logging.DEBUG else 0,
            "log_format": self._format(),
        }

    def update(self, changes: Mapping[str, Any]) -> dict[str, bool | int | str]:
        """Make all of these changes or, if one is wrong, none. Returns all values."""
        with self._lock:
            before = self.values()
            values = dict(before)
            for name, value in changes.items():
                if name not in values:
                    known = ", ".join(values)
                    raise InvalidRequest(f"unknown log setting '{name}'; known are {known}")
                if name == "log_file" and value == before[name]:
                    continue
                values[name] = _checked_log_setting(name, value)
            if values["log_format"] != before["log_format"]:
                self._use_format(str(values["log_format"]))
            if any(values[name] != before[name] for name in (*SEVERITIES, "log_verbose_level")):
                self._use_levels(values)
            return self.values()

    def _use_levels(self, values: Mapping[str, Any]) -> None:
        enabled = {severity for name, severity in SEVERITIES.items() if values[name]}
        level = min(enabled, default=_SILENT)
        if values["log_verbose_level"]:
            self._verbose_level, level = values["log_verbose_level"], logging.DEBUG
        log.setLevel(level)
        severities().off = {s for s in SEVERITIES.values() if s >= level and s not in enabled}

    def _format(self) -> str:
        for handler in logging.getLogger().handlers:
            if isinstance(handler.formatter, JsonFormatter):
                return "json"
            if isinstance(handler.formatter, HumanFormatter):
                return "ISO8601" if handler.formatter.iso else "default"
        return "default"

    def _use_format(self, name: str) -> None:
        ours = _our_handlers()
        if not ours:
            raise Unsupported(
                "log_format: the program that runs this server formats its log itself"
            )
        for handler in ours:
            colour = getattr(handler.formatter, "colour", False)
            named = name.lower()
            handler.setFormatter(formatter_of(named, colour=colour))


def _log_file() -> str:
    """The name of the log's file, without its folder, which clients need not know."""
    for handler in _our_handlers():
        if isinstance(handler, logging.FileHandler):
            return os.path.basename(handler.baseFilename)
    return ""


def _our_handlers() -> list[logging.Handler]:
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler.formatter, HumanFormatter | JsonFormatter)
    ]


def _checked_log_setting(name: str, value: Any) -> bool | int | str:
    if name == "log_file":
        raise Unsupported(
            "log file location can not be updated through network protocol",
            more="; start the server with --log-file PATH",
        )
    if name == "log_format":
        if value not in LOG_FORMATS:
            raise InvalidRequest(f"log_format must be one of {', '.join(LOG_FORMATS)}")
        return str(value)
    if name == "log_verbose_level":
        if type(value) is not int or value < 0:
            problem = "log_verbose_level must be a whole number from 0 up"
            raise InvalidRequest(problem, tag=Tag.JSON)
        return value
    if type(value) is not bool:
        raise InvalidRequest(f"{name} must be a bool", tag=Tag.JSON)
    return value
