"""Which settings apply, and where does each come from?

A flag wins over its WHERRY_ variable, that over the file, that over the default. Which options
there are is declared in server/options.py. `[models.NAME]` in the file holds fields of ModelConfig;
a flag or variable that is also such a field (isolation, instances, request_timeout, max_queue_wait)
is the operator's, so it wins over the model's own code.

The file is --config, or wherry.toml here, or [tool.wherry] in pyproject.toml here. A file called
.json has the same tables as JSON, as programs write them.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from wherry.core.api import FIELDS, ConfigError, size_of
from wherry.server.access.api_keys import MIN_KEY_CHARS, parse_key
from wherry.server.options import OPTIONS, PREFIX, Access, Option, Options, Tls, options_of

#: Options of the server that are also settings of every model it serves.
OF_EVERY_MODEL = ("isolation", "instances", "request_timeout", "max_queue_wait")

log = logging.getLogger("wherry")


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged options, and the origin of each that is not a default."""

    options: Options
    #: "--port", "WHERRY_PORT" or "wherry.toml [server]", by the option's key.
    origins: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    file: str | None = None

    def of_model(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        """The settings that the operator gives this model, and the origin of each."""
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        from_file = [key for key in OF_EVERY_MODEL if self._is_from_file(key)]
        for key in from_file:
            values[key], origins[key] = getattr(self.options.models, key), self.origins[key]
        for key, value in self.models.get(name, {}).items():
            values[key], origins[key] = value, f"{self.file} [models.{name}]"
        for key in OF_EVERY_MODEL:
            if key in self.origins and key not in from_file:
                values[key], origins[key] = getattr(self.options.models, key), self.origins[key]
        if names := self.options.models.served_model_names:
            values["served_names"] = names
            origins["served_names"] = self.origins["served_model_name"]
        if self.options.models.inline:
            values["isolation"], origins["isolation"] = "thread", self.origins["inline"]
        return values, origins

    def _is_from_file(self, key: str) -> bool:
        return self.file is not None and self.origins.get(key, "").startswith(self.file)

    def unused_models(self, served: list[str]) -> dict[str, str]:
        """Names in `[models.NAME]` that are not served, with a guess at what was meant."""
        return {
            name: next(iter(difflib.get_close_matches(name, served, n=1)), "")
            for name in self.models
            if name not in served
        }

    def resources(self) -> dict[str, int]:
        """The count of each shared resource, by name. tritonserver's may name a device."""
        counts: dict[str, int] = {}
        for text in self.options.models.rate_limit_resources:
            name, count, device = (*text.split(":"), "", "")[:3]
            sound = text.count(":") <= 2 and (not device or device.isdecimal())
            if not (sound and name and count.isdecimal() and int(count)):
                where = self.origins["rate_limit_resource"]
                raise ConfigError(
                    f"{where}: {text!r} is not NAME:COUNT or NAME:COUNT:DEVICE, with a count from 1"
                    " up"
                )
            # All devices share it here: the largest of what tritonserver has for each.
            counts[name] = max(int(count), counts.get(name, 0) if device else 0)
        return counts

    def device_memory(self) -> dict[str, int]:
        """The bytes that models may take of each device, by its name."""
        budgets: dict[str, int] = {}
        where = self.origins.get("device_memory", "device_memory")
        for text in self.options.models.device_memory:
            device, _, size = text.partition("=")
            try:
                budgets[device] = size_of(size)
            except ValueError:
                budgets[device] = 0
            if not re.fullmatch(r"cpu|cuda:\d+", device) or not budgets[device]:
                raise ConfigError(
                    f"{where}: {text!r} is not DEVICE=SIZE, as cuda:0=70GiB or cpu=8GiB"
                )
        return budgets

    def access(self) -> Access:
        """Who may call what. The text of a ConfigError shows no key."""
        where = self.origins.get("api_key", "api_key")
        for number, key in enumerate(self.options.access.api_keys, 1):
            parse_key(key, f"{where} (key {number})", shortest=MIN_KEY_CHARS)
        return self.options.access


def read_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str], *, folder: Path = Path()
) -> Settings:
    """Merge flags, environment, file and defaults. `flags` has options by their keys, and `config`.
    ConfigError names the mistake and its place."""
    file, table = _read_file(flags.get("config") or environ.get(f"{PREFIX}CONFIG"), folder)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    where = f"{file} [server]"
    for key, value in table.get("server", {}).items():
        values[key] = _checked(OPTIONS[key], value, f"{where}: {key}", text=False)
        origins[key] = where
    for key, option in OPTIONS.items():
        if (text := environ.get(option.variable)) and not _is_from_kubernetes(key, text):
            if option.separator:
                values[key] = tuple(filter(None, _parts(text, option.separator)))
            else:
                values[key] = _checked(option, text, option.variable)
            origins[key] = option.variable
        if (value := flags.get(key)) is not None:
            values[key], origins[key] = _checked(option, value, option.flag), option.flag
    options = options_of(values)
    _check_tls(options.tls)
    return Settings(options, origins, table.get("models", {}), file)


def _parts(text: str, separator: str) -> list[str]:
    """The values in a variable. The colons in a URL separate nothing."""
    return re.split(r":(?!//|\d+/)", text) if separator == ":" else text.split(separator)


def _check_tls(tls: Tls) -> None:
    if tls.ssl_certfile is None and (tls.ssl_keyfile or tls.ssl_client_ca):
        raise ConfigError("ssl_keyfile and ssl_client_ca need ssl_certfile")
    if tls.grpc_use_ssl or tls.grpc_use_ssl_mutual:
        if tls.grpc_ssl_certfile is None:
            raise ConfigError("grpc_use_ssl needs grpc_server_cert, and mostly grpc_server_key")
        if tls.grpc_use_ssl_mutual and tls.grpc_ssl_client_ca is None:
            raise ConfigError("grpc_use_ssl_mutual needs grpc_root_cert: whose clients to let in")


def _checked(option: Option, value: Any, where: str, *, text: bool = True) -> Any:
    """`value` as the option's type; from a flag or a variable it is text."""
    if option.is_size and isinstance(value, str):
        try:
            value = size_of(value)
        except ValueError:
            raise ConfigError(
                f"{where}: {value!r} is not a size; write bytes, or for example 64MiB"
            ) from None
    if option.separator and isinstance(value, str):
        value = [value]
    try:
        # "8000" is a number where only text can be written, but a mistake in a file.
        converted = msgspec.convert(value, option.type, strict=not text)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {value!r}: {_plainly(str(error), option)}") from None
    if isinstance(converted, int | float) and not option.least <= converted <= option.most:
        most = "" if option.most == float("inf") else f" and at most {option.most:g}"
        raise ConfigError(f"{where}: {value!r} must be at least {option.least:g}{most}")
    return converted


def _plainly(problem: str, option: Option) -> str:
    if option.choices:
        return "expected one of " + ", ".join(option.choices)
    return problem[0].lower() + problem[1:].replace("`", "")


def _is_from_kubernetes(key: str, value: str) -> bool:
    """A Service called `wherry` gives every pod WHERRY_PORT=tcp://10.0.0.1:80, one called
    `wherry-rows` WHERRY_ROWS_PORT: not meant as an option."""
    return key.endswith("port") and value.startswith(("tcp://", "udp://"))


def _read_file(named: str | None, folder: Path) -> tuple[str | None, dict[str, Any]]:
    path = Path(named) if named else folder / "wherry.toml"
    if not named and not path.exists():
        path = folder / "pyproject.toml"
        if not path.exists():
            return None, {}
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    shown = str(path)
    if path.name == "pyproject.toml":
        if "wherry" not in table.get("tool", {}):
            return None, {}
        table, shown = table["tool"]["wherry"], f"{path} [tool.wherry]"
    _check_keys(table, ["server", "models"], shown)
    _check_keys(_table(table, "server", shown), list(OPTIONS), f"{shown} [server]")
    models = _table(table, "models", shown)
    if models:
        for name in models:
            where = f"{shown} [models.{name}]"
            _check_keys(_table(models, name, f"{shown} [models]"), [*FIELDS, "device"], where)
    return shown, table


def _table(table: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} must be a table, not {found!r}")
    return found


def _check_keys(table: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
