import logging
import os
from typing import Any

import pytest

from wherry.core.workers.log import LogPump, PipeHandler


def pumped(*chunks: bytes) -> None:
    read, write = os.pipe()
    pump = LogPump(read, "m", "m_0")
    for chunk in chunks:
        os.write(write, chunk)
        pump.pump()
    os.close(write)
    pump.close()


def test_lines_are_put_together_again_and_a_progress_bar_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        pumped(b"one\ntw", b"o\n\n 10%\r 50%\r100%\n", "thr\u00e9e".encode(), b"\xff")

    assert [r.getMessage() for r in caplog.records] == ["one", "two", "100%", "thr\u00e9e\ufffd"]


def test_a_record_keeps_its_level_logger_and_fields_behind_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = logging.makeLogRecord(
        {"name": "shop", "levelno": 40, "msg": "out of %s", "args": ("apples",), "aisle": object()}
    )
    line = PipeHandler(1).line(record)

    with caplog.at_level(logging.INFO):
        pumped(b"printed without an end" + line, b"\x1enot a record\n")

    printed, logged, broken = caplog.records
    assert printed.getMessage() == "printed without an end"
    assert broken.getMessage() == "\x1enot a record"
    assert (logged.name, logged.levelname, logged.getMessage()) == (
        "shop",
        "ERROR",
        "out of apples",
    )
    fields: Any = logged
    assert (fields.model, fields.instance) == ("m", "m_0")
    assert "object object" in fields.aisle


def test_what_nobody_logs_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("wherry.worker"), "propagate", False)

    pumped(b"hello\n")

    assert capsys.readouterr().err == "[m_0] hello\n"
