"""What the command line prints, and with which code it exits."""

import argparse
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wherry
from wherry.bench.cli import flags as bench_flags
from wherry.server.cli import EVERYDAY, FEW, main, parser
from wherry.server.cli.help import EXAMPLES, GROUPS
from wherry.server.options import OPTIONS

IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

#: What the server does: it says so when it may be signalled, and what it is told of.
SERVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from wherry.__main__ import continue_in_child

continue_in_child()
told = []
signal.signal(signal.SIGTERM, lambda number, _: (print("TERM", flush=True), os._exit(7)))
signal.signal(signal.SIGHUP, lambda *_: print("HUP", flush=True))

def states():
    found = [one.read_text() for one in Path("/proc").glob("[0-9]*/stat")]
    return [one.rpartition(")")[2].split()[0] for one in found]

subprocess.run(["sh", "-c", "true & true & exec sh -c \'sleep 0.05 &\'"], check=True)
ends_at = time.monotonic() + 30
while len(states()) > 2 and time.monotonic() < ends_at:
    time.sleep(0.01)
is_passed = os.environ["LISTEN_PID"] == str(os.getpid())
print(os.getpid() > 1, os.getppid(), is_passed, states().count("Z"), flush=True)
while True:
    signal.pause()
"""


def started() -> subprocess.Popen[str]:
    if subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and the right to use it")
    return subprocess.Popen(
        [*IN_A_CONTAINER, sys.executable, "-P", "-c", SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LISTEN_PID": "1"},
    )


def first_process(of: subprocess.Popen[str]) -> int:
    (child,) = Path(f"/proc/{of.pid}/task/{of.pid}/children").read_text().split()
    return int(child)


def test_the_first_process_reaps_orphans_passes_signals_on_and_ends_as_the_server_does() -> None:
    with started() as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "True 1 True 0\n"
        os.kill(first_process(container), signal.SIGHUP)
        assert container.stdout.readline() == "HUP\n"
        os.kill(first_process(container), signal.SIGTERM)
        assert container.stdout.readline() == "TERM\n"
    assert container.returncode == 7


def test_a_server_that_is_killed_is_told_by_the_exit_code() -> None:
    with started() as container:
        assert container.stdout is not None
        container.stdout.readline()
        first = first_process(container)
        (server,) = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        os.kill(int(server), signal.SIGKILL)
    assert container.returncode == 128 + signal.SIGKILL


def test_version_and_help_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, wanted in (("--version", f"wherry {wherry.__version__}"), ("--help", "serve")):
        with pytest.raises(SystemExit) as exit:
            main([flag])
        assert exit.value.code == 0
        assert wanted in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "check", "config", "call", "models"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
    assert exit.value.code == 0
    assert f"usage: wherry {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "check", "config", "bench"])
def test_help_is_one_screen_and_help_all_has_every_flag(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as exit:
            main([command, flag])
        assert exit.value.code == 0
        shown.append(capsys.readouterr().out)
    assert len(shown[0].splitlines()) <= 40
    flags = {one.flag for one in OPTIONS.values()}
    if command == "bench":
        flags = {one.name for group in bench_flags.GROUPS.values() for one in group}
    everyday = {*{"bench": bench_flags.EVERYDAY, "serve": EVERYDAY}.get(command, FEW)}
    assert {one for one in everyday if f"  {one}" not in shown[0]} == set()
    assert {one for one in flags | everyday if f"  {one}" not in shown[1]} == set()


def test_a_flag_that_is_not_known_has_a_guess_and_one_line_of_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "app.py", "--log-levle=debug"])
    usage, problem = capsys.readouterr().err.splitlines()
    assert usage == "usage: wherry serve [FLAGS] [TARGET ...]"
    assert problem.endswith("--log-levle=debug; did you mean --log-level?")


@pytest.mark.parametrize(("flag", "end"), [("-p", "did you mean --port?"), ("--gpu", "--gpu")])
def test_a_short_flag_has_a_guess_and_an_unlike_one_none(
    flag: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "app.py", flag])
    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_without_a_target_the_file_that_is_there_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    assert "nothing to serve: name a file (app.py)" in capsys.readouterr().err
    (tmp_path / "models.py").write_text("import wherry")
    assert main(["check"]) == 2
    assert "nothing to serve: did you mean `wherry serve models.py`?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nope"], ["serve", "x.py", "--nope"]])
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert capsys.readouterr().out == ""


def test_config_shows_values_and_origins_and_hides_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_DRAIN_TIMEOUT", "4")
    (tmp_path / "wherry.toml").write_text("[models.m]\nmax_batch_size = 16\n")
    redis = ["--cache-config=redis,host=h", "--cache-config", "redis,password=secret"]
    assert main(["config", "--api-key", "secret", "--port", "0", *redis]) == 0
    out = capsys.readouterr().out
    table = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert table["port"] == ["0", "--port"]
    assert table["drain_timeout"] == ["4.0", "WHERRY_DRAIN_TIMEOUT"]
    assert table["host"] == ["127.0.0.1", "default"]
    assert table["max_batch_size"][0] == "16"
    assert table["cache_config"][0] == '["redis,host=h","redis,password=..."]'
    assert "secret" not in out


def test_a_wrong_setting_is_exit_code_2_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "--port", "many"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "wherry: --port: 'many': expected int, got str\n"


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("serv", "did you mean 'serve'?"),
        ("ls", "did you mean 'models'?"),
        ("help", "did you mean '--help'?"),
        ("app.py", "did you mean `wherry serve app.py`?"),
        ("llm:org/model", "did you mean `wherry serve llm:org/model`?"),
        ("qqqq", "wherry --help lists them"),
    ],
)
def test_a_command_that_is_not_known_has_a_guess(
    word: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([word])
    assert exit.value.code == 2
    problem = capsys.readouterr().err.splitlines()[-1]
    assert problem.startswith(f"wherry: error: no command {word!r}; ")
    assert problem.endswith(end)


def test_help_lists_each_command_once_and_each_has_examples() -> None:
    (commands,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(commands.choices) == sorted(name for name in EXAMPLES if name)


@pytest.mark.parametrize("line", [one for lines in EXAMPLES.values() for one in lines])
def test_an_example_in_the_help_is_a_command_line(line: str) -> None:
    words = shlex.split(re.sub(r"[<>].*|^eval \"\$\((.*)\)\"$", r"\1", line))
    assert words[0] == "wherry"
    args, rest = parser().parse_known_args(words[1:])
    assert args.run
    assert not [word for word in rest if word.startswith("-")]


def test_no_command_at_all_shows_the_help_and_is_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([])
    assert exit.value.code == 2
    assert "  check       load the models" in capsys.readouterr().err


def test_headings_are_bold_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = []
    for is_terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        parser().print_help(stream)
        shown.append(stream.getvalue())
    assert "\x1b[1mServe:\x1b[0m\n  serve " in shown[0]
    assert "\x1b" not in shown[1]


def test_help_imports_neither_numpy_nor_an_event_loop() -> None:
    code = (
        "import sys\nfrom wherry.server.cli import main\n"
        "try: main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'asyncio', 'uvloop', 'msgspec', 'logging'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"
