"""What `wherry bench` understands, refuses and writes. (Real servers: tests/integration.)"""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import wherry
from tests.unit.bench.reports import point, report
from wherry.bench import report as reports
from wherry.bench.cli.command import take_model
from wherry.bench.cli.flags import add_flags
from wherry.bench.cli.run import Interrupts, without_secrets
from wherry.bench.figures import Figures
from wherry.bench.report import Report
from wherry.server.cli import main
from wherry.testing import local_server

APP = """
import wherry

@wherry.model(max_batch_size=8, examples=[{"text": "a"}])
def bench_echo(text: list[str]) -> list[str]:
    return text
"""


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--callers", "0"], "--callers '0'"),
        (["--callers", "many"], "--callers 'many'"),
        (["--callers", "0..4"], "--callers"),
        (["--callers", "1", "--rate", "5"], "two kinds of load"),
        (["--rate", "5", "--think", "1"], "for callers"),
        (["--rate", "fast"], "--rate 'fast'"),
        (["--rate", "0"], "rate must be above 0"),
        (["--duration", "soon"], "--duration 'soon'"),
        (["--duration", "1", "--warmup", "2"], "leaves nothing to measure"),
        (["--requests", "0"], "requests must be above 0"),
        (["--timeout", "0"], "timeout must be above 0"),
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--shape", "x"], "pixels=3,224,224"),
        (["--shape", "x=a"], "pixels=3,224,224"),
        (["--header", "nocolon"], "--header 'nocolon'"),
        (["--set", "x"], "max_batch_size=8,16,32"),
        (["--find-max"], "--p95 200ms"),
        (["--p95", "soon"], "--p95 'soon'"),
        (["--compare", "http://a", "/nowhere.json"], "not one of each"),
        (["--compare", "http://a", "http://b", "--find-max", "--p95", "1s"], "has no other TARGET"),
        (["--find-max", "--p95", "1s", "--max-errors", "few"], "1% or 0.01"),
        (["--json", "/nowhere/at/all.json"], "no such folder"),
        (["--html", "/tmp"], "--html /tmp: this cannot be written"),
        (["--set", "max_batch_size=1"], "name app.py, not a URL"),
        (["--inputs", "/nowhere.jsonl", "--body", "x"], "nowhere.jsonl"),
    ],
)
def test_a_wrong_flag_is_exit_code_2_and_says_what_to_write(
    words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "http://127.0.0.1:1/x", *words]) == 2
    captured = capsys.readouterr()
    assert wrong in captured.err
    assert captured.out == ""


def test_keys_and_headers_do_not_stand_in_a_report() -> None:
    command = ["wherry", "bench", "u", "--api-key", "k", "--header=A:b", "--serve=--api-key=k", "x"]
    shown = without_secrets(command)
    assert " ".join(shown) == "wherry bench u --api-key *** --header=*** --api-key=*** x"


def test_the_first_ctrl_c_asks_and_the_second_one_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested()
        interrupts.wait(60)  # is over at once
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_ctrl_c_while_something_starts_ends_that_at_once() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested()
        assert not interrupts.insisted


def test_a_run_writes_everything_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = {name: str(tmp_path / f"out.{name}") for name in ("json", "html", "jsonl")}
    files = [word for name, path in out.items() for word in (f"--{name}", path)]
    with local_server(Failing(never)) as server:
        code = main(["bench", server.url, "--callers", "1,2", "--loops", "5", *files])
    captured = capsys.readouterr()
    assert code == 0
    assert "callers 2" in captured.err
    made = msgspec.json.decode(Path(out["json"]).read_bytes(), type=Report)
    assert [p.settings for p in made.points] == [{"callers": 1}, {"callers": 2}]
    assert [p.figures.ok for p in made.points] == [5, 10]
    assert made.target.protocol == "infer"
    assert len(Path(out["jsonl"]).read_text().splitlines()) == 15
    assert Path(out["html"]).read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        (["--set", "max_batch_size=2,nonsense"], "max_batch_size"),
        (["--set", "max_batch_size=2", "--json", "/dev/full"], "--json /dev/full: "),
    ],
)
def test_a_setting_or_file_that_fails_does_not_cost_what_was_measured_before(
    flags: list[str], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text(APP)
    load = [
        "bench",
        f"{tmp_path}/app.py",
        "--model",
        "bench_echo",
        "--callers",
        "1",
        "--loops",
        "5",
    ]
    assert main([*load, *flags, "--jsonl", str(tmp_path / "o.jsonl")]) == 2
    captured = capsys.readouterr()
    assert wrong in captured.err
    assert "callers" in captured.out
    rows = [msgspec.json.decode(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [row["max_batch_size"] for row in rows] == [2] * 5


def test_two_reports_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("a", 100), ("b", 200)):
        (tmp_path / name).write_bytes(reports.encode(report(point(rate))))
    assert main(["bench", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "better" in out
    assert "+10" in out
    assert "in turns" in out
    assert main(["bench", "--compare", str(tmp_path / "a"), str(tmp_path / "gone")]) == 2


def test_reports_without_a_common_point_are_no_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, callers in (("a", 1), ("b", 2)):
        (tmp_path / name).write_bytes(reports.encode(report(point(callers=callers))))
    assert main(["bench", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "no point in common" in capsys.readouterr().err


class Failing(wherry.Model):
    """Fails in the calls, counted from 1, for which `fails` is true."""

    max_batch_size = 8

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self._fails, self._calls = fails, 0

    def execute(self, text: list[str]) -> list[str]:
        self._calls += 1
        if self._fails(self._calls):
            raise ValueError("not this time")
        return text


def never(call: int) -> bool:
    return False


def always(call: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("fails", "flags", "code", "said"),
    [
        (never, [], 0, ""),
        (never, ["--p99", "1h"], 0, ""),
        (never, ["--p50", "1us"], 1, "p50 is"),
        # The last ones are answered: one that fails at the end is silence, if it takes its time.
        (lambda n: n % 4 == 1, [], 0, ""),
        (lambda n: n % 4 == 1, ["--max-errors", "1%"], 1, "limit 1 %"),
        (lambda n: n % 4, [], 2, "75 % failed"),
        # So many that they are a tenth of the time, however long the first ones take.
        (lambda n: n > 15, ["--loops", "2000"], 2, "no answer in the last"),
        (always, [], 2, "not one request was answered"),
        (never, ["--find-max", "--p50", "1us"], 1, "no number of callers meets"),
        (always, ["--find-max", "--p50", "1s"], 2, "not one request was answered"),
    ],
)
def test_the_exit_code_tells_fine_from_missed_from_not_measured(
    fails: Callable[[int], bool], flags: list[str], code: int, said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    load = ["--callers", "1", "--loops", "40"] if "--find-max" not in flags else ["--loops", "40"]
    with local_server(Failing(fails)) as server:
        assert main(["bench", server.url, "--quiet", *load, *flags]) == code
    assert said in capsys.readouterr().err


def test_two_targets_are_measured_in_turns_and_the_report_has_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "o.json"
    with local_server(Failing(never)) as one, local_server(Failing(never)) as two:
        code = main([
            "bench", "--compare", one.url, two.url,
            "--callers", "1,2", "--loops", "3", "--repeat", "4", "--quiet", "--json", str(made),
        ])  # fmt: skip
    assert code == 0
    assert "requests/s" in capsys.readouterr().out
    points = msgspec.json.decode(made.read_bytes(), type=Report).points
    assert [p.settings for p in points] == [
        {"target": target, "callers": callers}
        for target in "AB" for callers in (1, 2) for _ in range(4)
    ]  # fmt: skip
    assert [p.repeat for p in points] == [0, 1, 2, 3] * 4


@pytest.mark.parametrize("more", [[], ["--find-max", "--p95", "1s"]], ids=["load", "search"])
def test_a_server_that_is_not_there_is_exit_code_2(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "http://127.0.0.1:1", *more]) == 2
    assert "is a server running there?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sentiment"], (None, "sentiment")),
        (["my-model"], (None, "my-model")),
        (["json"], ("json", None)),  # a module
        (["app"], ("app", None)),  # a file here
        (["app.py"], ("app.py", None)),
        (["http://host"], ("http://host", None)),
        (["sentiment", "--set", "max_batch_size=8"], ("sentiment", None)),
        ([], (None, None)),
    ],
)
def test_a_word_that_is_no_module_is_a_model_of_the_server(
    words: list[str],
    expected: tuple[str | None, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    args = parser.parse_args(words)
    take_model(args)
    assert (args.target, args.model) == expected


def test_every_flag_has_its_row_in_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/bench.md").read_text()
    rows = dict(re.findall(r"^\| `(--[a-z0-9-]+)[^`]*` \| (.*) \|$", page, re.M))
    made = argparse.ArgumentParser()
    add_flags(made)
    actions = [action for action in made._actions if action.option_strings[1:] != ["--help"]]
    flags = {a.option_strings[0]: a.help for a in actions if a.option_strings}
    assert rows.keys() == flags.keys()
    for flag, help in flags.items():
        assert rows[flag].replace("\\|", "|") == str(help).replace("%%", "%"), flag


def test_every_figure_of_the_json_report_is_explained() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/bench.md").read_text()
    for kind in (Report, reports.Point, reports.ClientSide, Figures, reports.SearchResult):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in page or f".{name}`" in page, f"{kind.__name__}.{name}"
