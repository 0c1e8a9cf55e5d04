"""server/calls/settings.py: log and trace settings of a running server."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wherry.core.observability.logging import HumanFormatter, configure
from wherry.core.values.errors import ConfigError, InvalidRequest, Unsupported
from wherry.server.calls.settings import TRACE_DEFAULTS, LogSettings, TraceSettings, environment_of

log = logging.getLogger("wherry")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The program's log, as `wherry serve` sets it up."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    configure("info", "human", stream)
    yield stream
    root.handlers[:], root.level = before[0], before[1]


def say_everything() -> None:
    log.debug("of debug")
    log.info("of info")
    log.warning("of warning")
    log.error("of error")


def said(lines: io.StringIO) -> list[str]:
    say_everything()
    return [line.rpartition(" ")[2] for line in lines.getvalue().splitlines()]


DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def test_the_settings_tell_what_the_log_shows(lines: io.StringIO) -> None:
    assert LogSettings().values() == DEFAULTS
    logging.getLogger().setLevel("ERROR")
    assert LogSettings().values() == {**DEFAULTS, "log_info": False, "log_warning": False}
    logging.getLogger().setLevel("DEBUG")
    assert LogSettings().values() == {**DEFAULTS, "log_verbose_level": 1}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, ["info", "warning", "error"]),
        ({"log_info": False}, ["warning", "error"]),
        ({"log_warning": False}, ["info", "error"]),
        ({"log_info": False, "log_warning": False, "log_error": False}, []),
        ({"log_verbose_level": 2}, ["debug", "info", "warning", "error"]),
        ({"log_verbose_level": 1, "log_info": False}, ["debug", "warning", "error"]),
    ],
)
def test_a_switch_takes_effect_at_once(
    lines: io.StringIO, given: dict[str, Any], shown: list[str]
) -> None:
    settings = LogSettings()
    assert settings.update(given) == {**DEFAULTS, **given}
    assert settings.values() == {**DEFAULTS, **given}
    assert said(lines) == shown


def test_a_switch_can_be_turned_back(lines: io.StringIO) -> None:
    settings = LogSettings()
    settings.update({"log_info": False, "log_error": False, "log_verbose_level": 1})
    settings.update({"log_info": True, "log_error": True, "log_verbose_level": 0})
    assert settings.values() == DEFAULTS
    assert said(lines) == ["info", "warning", "error"]


def test_the_format_takes_effect_at_once(lines: io.StringIO) -> None:
    settings = LogSettings()
    assert settings.update({"log_format": "ISO8601"})["log_format"] == "ISO8601"
    log.info("dated")
    assert settings.update({"log_format": "json"})["log_format"] == "json"
    log.info("for machines")
    assert settings.update({"log_format": "default"})["log_format"] == "default"
    log.info("plain")
    dated, machines, plain = lines.getvalue().splitlines()
    assert dated[4:5] == "-"
    assert dated[10:11] == "T"
    assert machines.startswith('{"ts":')
    assert plain[2:3] == ":"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"log_info": 1}, "log_info must be a bool"),
        ({"log_error": None}, "log_error must be a bool"),
        ({"log_verbose_level": -1}, "log_verbose_level must be a whole number"),
        ({"log_verbose_level": True}, "log_verbose_level must be"),
        ({"log_format": "xml"}, "log_format must be one of default, ISO8601, json"),
        ({"log_format": []}, "log_format must be one of"),
        ({"loud": True}, "unknown log setting 'loud'"),
    ],
)
def test_a_wrong_log_setting_changes_nothing(
    lines: io.StringIO, given: dict[str, Any], text: str
) -> None:
    settings = LogSettings()
    with pytest.raises(InvalidRequest, match=text):
        settings.update({"log_warning": False, **given})
    assert settings.values() == DEFAULTS


def test_the_file_cannot_be_changed_from_outside(lines: io.StringIO) -> None:
    with pytest.raises(Unsupported, match="log file location"):
        LogSettings().update({"log_file": "/etc/passwd"})
    assert LogSettings().update({"log_file": ""}) == DEFAULTS


def test_a_program_s_own_format_stays(lines: io.StringIO) -> None:
    logging.getLogger().handlers[0].setFormatter(logging.Formatter())
    with pytest.raises(Unsupported, match="the program that runs this server"):
        LogSettings().update({"log_format": "json"})


def test_trace_settings_are_kept() -> None:
    settings = TraceSettings()
    assert settings.values() == TRACE_DEFAULTS
    changed = settings.update({"trace_rate": "5", "trace_count": 7, "log_frequency": "2"})
    assert changed == settings.values()
    assert changed == {
        **TRACE_DEFAULTS,
        "trace_rate": "5",
        "trace_count": "7",
        "log_frequency": "2",
    }


def test_a_model_has_the_server_s_settings_but_for_its_own() -> None:
    settings = TraceSettings()
    settings.update({"trace_rate": "5", "trace_count": "9"})
    assert settings.update({"trace_rate": "6"}, "m")["trace_rate"] == "6"
    assert settings.values()["trace_rate"] == "5"
    assert settings.values("other")["trace_rate"] == "5"
    assert settings.values("m")["trace_count"] == "9"
    assert settings.update({"trace_rate": None}, "m")["trace_rate"] == "5"
    assert settings.update({"trace_rate": None})["trace_rate"] == "1000"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["TIMESTAMPS"], ["TIMESTAMPS"]),
        (["OFF", "TENSORS"], ["TENSORS"]),
        (["TENSORS", "TIMESTAMPS"], ["TIMESTAMPS", "TENSORS"]),
        (["TIMESTAMPS", "TIMESTAMPS"], ["TIMESTAMPS"]),
        ("OFF", ["OFF"]),
        (["OFF"], ["OFF"]),
        (["OFF", "OFF"], ["OFF"]),
    ],
)
def test_trace_levels_are_a_list(given: Any, kept: list[str]) -> None:
    settings = TraceSettings(["triton,file=trace.json"])
    assert settings.update({"trace_level": given})["trace_level"] == kept


@pytest.mark.parametrize("model", [None, "a"])
def test_without_a_file_a_level_is_refused_as_nothing_would_be_traced(model: str | None) -> None:
    settings = TraceSettings()
    settings.update({"trace_rate": "1", "trace_level": ["OFF"]}, model)
    with pytest.raises(InvalidRequest, match=r"start the server with --trace-config triton,file="):
        settings.update({"trace_rate": "5", "trace_level": ["TIMESTAMPS"]}, model)
    assert settings.values(model)["trace_rate"] == "1"
    assert settings.update({"trace_level": None}, model)["trace_level"] == ["OFF"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"trace_rate": "often"}, "trace_rate must be a whole number from 0 up"),
        ({"trace_rate": "-1"}, "trace_rate must be"),
        ({"trace_rate": 1.5}, "trace_rate must be"),
        ({"trace_rate": True}, "trace_rate must be"),
        ({"trace_rate": "9" * 5000}, "trace_rate must be"),
        ({"trace_count": "-2"}, "trace_count must be a whole number from -1 up"),
        ({"log_frequency": []}, "log_frequency must be"),
        ({"trace_level": ["ALL"]}, "trace_level must be a list of OFF, TIMESTAMPS, TENSORS"),
        ({"trace_level": []}, "trace_level must be"),
        ({"trace_level": [[]]}, "trace_level must be"),
        ({"trace_level": 1}, "trace_level must be"),
        ({"speed": 1}, "unknown trace setting 'speed'"),
    ],
)
def test_a_wrong_trace_setting_changes_nothing(given: dict[str, Any], text: str) -> None:
    settings = TraceSettings()
    with pytest.raises(InvalidRequest, match=text):
        settings.update({"log_frequency": "3", **given})
    assert settings.values() == TRACE_DEFAULTS


@pytest.mark.parametrize("name", ["trace_file", "trace_mode"])
def test_where_traces_go_cannot_be_changed_from_outside(name: str) -> None:
    with pytest.raises(Unsupported, match="can not be updated through network protocol"):
        TraceSettings().update({name: "elsewhere"})
    assert TraceSettings().update({name: TRACE_DEFAULTS[name]}) == TRACE_DEFAULTS


def test_a_server_starts_with_what_its_trace_config_says() -> None:
    settings = TraceSettings(
        ["triton,file=t.json", "mode=triton", "level=TENSORS", "level=TIMESTAMPS", "rate=3"]
    )
    started = {
        **TRACE_DEFAULTS,
        "trace_file": "t.json",
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "3",
    }
    assert settings.values() == started
    settings.update({"trace_rate": "5", "trace_level": ["OFF"]})
    assert settings.update(dict.fromkeys(("trace_rate", "trace_level"))) == started


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("jaeger,url=x", "the modes are triton and opentelemetry"),
        ("mode=jaeger", "the modes are triton and opentelemetry"),
        ("speed=1", "the settings are file, level, rate"),
        ("rate", "the settings are"),
        ("rate=often", "trace_rate must be a whole number"),
        ("level=ALL", "trace_level must be"),
    ],
)
def test_a_trace_config_that_makes_no_sense_is_refused(word: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TraceSettings([word])


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        (["MIN", "max"], ["TIMESTAMPS"]),
        (["true"], ["TIMESTAMPS"]),
        (["On", "tensors"], ["TIMESTAMPS", "TENSORS"]),
        (["false"], ["OFF"]),
        (["timestamps", "off"], ["OFF"]),
        (["OFF", "TENSORS"], ["OFF"]),
    ],
)
def test_a_level_of_the_command_line_has_other_names_and_off_wins(
    words: list[str], levels: list[str]
) -> None:
    settings = TraceSettings(["triton,file=t.json", *(f"level={word}" for word in words)])
    assert settings.values()["trace_level"] == levels


def test_a_level_of_a_request_has_one_name() -> None:
    with pytest.raises(InvalidRequest, match="trace_level must be"):
        TraceSettings(["triton,file=t.json"]).update({"trace_level": ["MIN"]})


def test_with_opentelemetry_there_are_no_trace_files() -> None:
    words = ["mode=opentelemetry", "opentelemetry,url=x", "triton,file=t", "level=TIMESTAMPS"]
    settings = TraceSettings(words)

    assert settings.values()["trace_mode"] == "opentelemetry"
    assert settings.values()["trace_level"] == ["TIMESTAMPS"]
    assert not settings.file
    assert not settings.on
    assert settings.update({})["trace_mode"] == "opentelemetry"
    with pytest.raises(Unsupported, match="can not be updated in mode opentelemetry"):
        settings.update({"trace_rate": "5"})


WANTED = ["mode=opentelemetry", "level=TIMESTAMPS"]


def test_another_mode_sets_nothing() -> None:
    assert environment_of(["triton,file=t", "level=TIMESTAMPS", "mode=triton"]) == {}


@pytest.mark.parametrize("level", [[], ["level=OFF"], ["level=False"], ["level=on", "level=off"]])
def test_nothing_is_traced_without_a_level_as_in_triton(level: list[str]) -> None:
    assert environment_of(["mode=opentelemetry", *level]) == {}


def test_its_settings_become_the_variables_of_the_sdk() -> None:
    words = [
        "opentelemetry,url=collector:4318/v1/traces",
        "opentelemetry,resource=service.name=a",
        "opentelemetry,resource=b=c",
        "opentelemetry,bsp_max_queue_size=9",
        "rate=4",
    ]
    assert environment_of([*WANTED, *words]) == {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,b=c",
        "OTEL_BSP_MAX_QUEUE_SIZE": "9",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }


def test_what_is_not_said_is_as_tritonserver_has_it() -> None:
    found = environment_of(WANTED)
    assert found["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://localhost:4318/v1/traces"
    assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.001"


def test_with_rate_0_only_requests_with_a_context_are_traced() -> None:
    assert environment_of([*WANTED, "rate=0"])["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("opentelemetry,port=1", "the settings are url, resource"),
        ("rate=often", "a whole number from 0 up"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        environment_of([*WANTED, word])


def test_the_log_file_is_shown_and_cannot_be_changed(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "server.log", delay=True)
    handler.setFormatter(HumanFormatter())
    logging.getLogger().addHandler(handler)
    try:
        settings = LogSettings()
        assert settings.values()["log_file"] == "server.log"
        assert settings.update({"log_file": "server.log"})["log_file"] == "server.log"
        with pytest.raises(Unsupported, match="log file location"):
            settings.update({"log_file": "other.log"})
    finally:
        logging.getLogger().removeHandler(handler)
