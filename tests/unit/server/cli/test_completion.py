"""What Tab offers, asked as the shells' scripts ask."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import wherry
from wherry.server.cli import main
from wherry.testing import local_server


def offered(capsys: pytest.CaptureFixture[str], *words: str, shell: str = "bash") -> list[str]:
    code = main(["completion", shell, "--", *words])
    found = capsys.readouterr().out.splitlines()
    assert code == (0 if found else 1)
    return found


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["se"], ["serve"]),
        (["serve", "--log-f"], ["--log-format", "--log-file"]),
        (["serve", "app.py", "--log-level", ""], ["debug", "info", "warning", "error"]),
        (["serve", "--log-level", "=", "d"], ["debug"]),  # bash's three words
        (["serve", "--log-level", "="], ["debug", "info", "warning", "error"]),
        (["serve", "--log-level=d"], ["--log-level=debug"]),  # zsh's and fish's one
        (["serve", "--model-control-mode", "e"], ["explicit"]),
        (["bench", "--protocol", "gen"], ["generate", "generate_stream"]),
        (["completion", "f"], ["fish"]),
        (["serve", ""], []),  # a file: the shell knows those
        (["serve", "--config", ""], []),
        (["nope", ""], []),
    ],
)
def test_the_next_word_follows_from_the_parser(
    words: Sequence[str], wanted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(capsys, *words) == wanted


def test_zsh_and_fish_are_told_what_a_word_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "doc", shell="zsh") == [
        "doctor:check this machine: versions, devices, limits, ports, packages"
    ]
    assert offered(capsys, "serve", "--log-le", shell="fish") == [
        "--log-level\tlowest level to log [info]"
    ]


def test_the_models_of_a_running_server_are_offered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def same(x: list[str]) -> list[str]:
        return x

    models = [wherry.model(name=name)(same) for name in ("shout", "shorten")]
    with local_server(*models, isolation="thread") as server:
        monkeypatch.setenv("WHERRY_URL", server.url)
        assert sorted(offered(capsys, "call", "sho")) == ["shorten", "shout"]
        assert offered(capsys, "call", "shout", "") == []
        monkeypatch.setenv("WHERRY_URL", "http://127.0.0.1:9")
        assert offered(capsys, "call", "sho") == []
        assert offered(capsys, "explain", "--url", server.url, "shou") == ["shout"]


def test_a_name_that_a_shell_would_run_is_not_offered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [{"name": name} for name in ("$(touch x)", "a;b", "`x`", "a b", "a\nb", "fine-1.0")]
    monkeypatch.setattr(wherry.Client, "models", lambda self: named)
    assert offered(capsys, "call", "") == ["fine-1.0"]


#: Has each shell complete `wherry serve --log-l` with its script.
ASKED = {
    "bash": """eval "$(wherry completion bash)"
COMP_WORDS=(wherry serve --log-l); COMP_CWORD=2; _wherry; echo "${COMPREPLY[@]}" """,
    "zsh": """autoload -Uz compinit; compinit -D -u; eval "$(wherry completion zsh)"
_describe() { print -l -- ${(P)argv[-1]} }
words=(wherry serve --log-l); CURRENT=3; _wherry""",
    "fish": """wherry completion fish | source; complete -C 'wherry serve --log-l'""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", sorted(ASKED))
def test_a_shell_reads_its_script_and_offers_what_it_is_told(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell}")
    (command := tmp_path / "wherry").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m wherry "$@"\n'
    )
    command.chmod(0o755)
    ran = subprocess.run(
        [program, "-c", ASKED[shell]],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert ran.stdout.split()[0].partition(":")[0] == "--log-level", ran.stderr
