"""An event with its fields, as a line for people and for machines."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wherry.core.observability.logging import (
    MOST_TRACEBACK,
    HumanFormatter,
    JsonFormatter,
    OncePerCause,
    configure,
    log_internal_error,
)
from wherry.core.values.errors import ConfigError
from wherry.server.calls.settings import LogSettings


def record(message: str, *args: object, name: str = "wherry", **extra: Any) -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(
        name, logging.INFO, "file.py", 1, message, args, None, extra=extra
    )
    made.created = 1_700_000_000.25
    return made


def human(made: logging.LogRecord) -> str:
    return HumanFormatter().format(made)[len("00:00:00 ") :]


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root, warnings = logging.getLogger(), logging.getLogger("py.warnings")
    handlers, level, others = root.handlers[:], root.level, warnings.handlers[:]
    logging.getLogger("asyncio").filters.clear()  # that of all unit tests
    yield
    logging.captureWarnings(False)
    root.handlers[:], warnings.handlers[:] = handlers, others
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.NOTSET)


def test_a_line_for_people_is_time_level_event_and_fields() -> None:
    line = human(record("model ready", model="bert", seconds=3.1000000001, instances=2))
    assert line == "INFO  model ready  model=bert seconds=3.1 instances=2"
    assert human(record("%d of %d", 1, 2)) == "INFO  1 of 2"


def test_values_that_could_be_misread_are_quoted() -> None:
    line = human(record("x", a="two words", b="", c='say "hi"', d="a=b", e=None))
    assert line == r'INFO  x  a="two words" b="" c="say \"hi\"" d="a=b" e=None'


def test_nothing_in_a_value_can_forge_a_line_or_draw_on_the_terminal() -> None:
    line = human(record("bad\nname", model="x\r\n12:00:00 ERROR forged\x1b[2J"))
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line


def test_a_line_of_another_library_says_whose_it_is() -> None:
    assert human(record("hello", name="some.lib")) == "INFO  some.lib: hello"


def test_a_traceback_stands_beneath_the_line() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        made = record("failed", model="m")
        made.exc_info = sys.exc_info()
    lines = human(made).splitlines()
    assert lines[0] == "INFO  failed  model=m"
    assert lines[-1] == "  ValueError: boom"
    told = human(record("failed", model="m", traceback="Traceback\n  of a worker"))
    assert told == "INFO  failed  model=m\n  Traceback\n    of a worker"


def test_a_line_for_machines_is_one_json_object() -> None:
    line = JsonFormatter().format(record("model ready", model="bert", seconds=3.1, odd={1}))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "wherry",
        "msg": "model ready",
        "model": "bert",
        "seconds": 3.1,
        "odd": [1],
    }


def test_no_field_replaces_what_every_line_has_and_nothing_breaks_the_line() -> None:
    line = json.loads(JsonFormatter().format(record("event", ts="mine", odd=object())))
    assert line["ts"] == "2023-11-14T22:13:20.250Z"
    assert line["odd"].startswith("<object object")
    assert json.loads(JsonFormatter().format(record("lone \udc80 surrogate")))["level"]


@pytest.mark.usefixtures("_root_logger")
def test_configure_sends_everything_to_one_place_once() -> None:
    stream = io.StringIO()
    configure("info", "human", io.StringIO())
    configure("warning", "json", stream)
    logging.getLogger("wherry").info("not this")
    logging.getLogger("wherry").warning("this", extra={"model": "m"})
    logging.getLogger("asyncio").info("nor this")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["msg"] == "this"


@pytest.mark.usefixtures("_root_logger")
@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_is_honoured(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    configure("info", "human", stream)
    logging.getLogger("wherry").error("red")
    assert ("\033[" in stream.getvalue()) is coloured


@pytest.mark.usefixtures("_root_logger")
def test_a_severity_may_be_off_alone_from_the_start() -> None:
    stream = io.StringIO()
    configure("debug", "human", stream, off=["warning"])
    own = logging.getLogger("wherry")
    for say in (own.debug, own.info, own.warning, own.error):
        say("said")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == [
        "DEBUG",
        "INFO",
        "ERROR",
    ]
    assert LogSettings().values()["log_warning"] is False
    LogSettings().update({"log_warning": True})
    own.warning("again")
    assert "WARNING again" in stream.getvalue()


def test_a_log_may_go_to_a_file_which_is_added_to(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    for message in ("first", "second"):
        handler = configure("info", "iso8601", file=str(file))
        logging.getLogger("wherry").info(message)
        handler.close()
    first, second = file.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d{4} INFO  first", first)
    assert second.endswith("second")


@pytest.mark.usefixtures("_root_logger")
def test_half_of_a_pair_is_written_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(file=str(tmp_path / "log")).close()
    logging.getLogger("wherry").info("half \udc80")
    logging.getLogger().handlers[0].close()
    assert (tmp_path / "log").read_text().endswith("half \\udc80\n")
    assert capsys.readouterr().err == ""


def test_a_log_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log_file .*: No such file or directory"):
        configure(file=str(tmp_path / "nowhere" / "server.log"))


def test_the_text_of_an_exception_can_forge_no_line_and_control_no_terminal() -> None:
    try:
        raise ValueError("no\n12:00:01 INFO  forged\r\x1b[2J\u2028x\u202ey")
    except ValueError:
        line = record("failed")
        line.exc_info = sys.exc_info()

    lines = human(line).splitlines()

    assert lines[1:][0] == "  Traceback (most recent call last):"
    assert all(one.startswith("  ") for one in lines[1:])
    assert "forged\\r\\x1b[2J\\u2028x\\u202ey" in lines[-1]


@pytest.mark.usefixtures("_root_logger")
def test_a_full_disk_is_one_line_and_not_one_for_each_event(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = configure(file="/dev/full")
    for number in range(3):
        logging.getLogger("wherry").info("event", extra={"number": number})
    assert capsys.readouterr().err == "log_file /dev/full: No space left on device\n"
    with pytest.raises(OSError, match="No space left"):
        handler.close()


def test_a_line_of_json_controls_no_terminal() -> None:
    text = "a\x1b[31m\n\x9b31m\x7f\u202eb\u2028 \ud800"
    record = logging.makeLogRecord({"msg": text, "levelname": "INFO", "field": text, "\x9bk": 1})
    for made in (record, logging.makeLogRecord({"msg": text.rstrip("\ud800"), "\x9b": "\u202e"})):
        line = JsonFormatter().format(made)
        assert line.isascii()
        assert line.isprintable()
        json.loads(line)
    assert json.loads(line)["msg"] == text.rstrip("\ud800")


def failed(text: str) -> Exception:
    try:
        raise ZeroDivisionError(text)
    except ZeroDivisionError as error:
        return error


def test_an_error_that_every_request_has_is_logged_once_and_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logged = [log_internal_error(failed("x" * 10**6), path=f"/{n}") for n in range(1000)]
    assert logged == [True] + [False] * 999
    (record,) = caplog.records
    assert record.message == "internal error"
    assert record.__dict__["path"] == "/0"
    assert "in failed" in record.__dict__["traceback"]
    assert len(record.__dict__["traceback"]) < MOST_TRACEBACK + 100


def test_the_first_of_each_cause_is_news_and_then_one_in_a_minute_with_the_number_between() -> None:
    once = OncePerCause()
    assert once.came("a", 0.0) == 0
    assert [once.came("a", 1.0 + n) for n in range(41)] == [None] * 41
    assert once.came("b", 5.0) == 0
    assert once.came("a", 60.0) == 41
    assert once.came("a", 119.9) is None
    assert once.came("a", 120.0) == 1


def test_causes_without_end_are_told_of_as_one_and_not_remembered() -> None:
    once = OncePerCause(most=8)
    told = [once.came(n, n * 1e-6) for n in range(100_000)]
    assert sum(more is not None for more in told) == 8 + 1
    assert len(once._logged) == 9
    assert once.unlogged() == {None: 100_000 - 9}


def test_old_causes_make_room_for_new_ones() -> None:
    once = OncePerCause(most=8)
    for n in range(1000):
        assert once.came(n, n * 10.0) == 0


def test_what_was_not_told_of_is_told_of_once_in_the_end() -> None:
    once = OncePerCause()
    for n in range(3):
        once.came("a", n)
    once.came("b", 0.0)
    assert once.unlogged() == {"a": 2}
    assert once.unlogged() == {}
