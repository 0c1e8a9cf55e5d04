"""server/cli/reload.py: models follow their files, and mistakes cost nothing."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wherry
from wherry.core.values.errors import ConfigError, ModelNotFound
from wherry.server.cli.reload import SETTLE_SECONDS, Reloader
from wherry.testing import ManualClock

APP = """
import wherry
from reloaded_words import word

@wherry.model
def first(text: str) -> str:
    return f"{word} {text}"

@wherry.model
def second(text: str) -> str:
    return f"second {text}"

@wherry.pipeline
async def both(text: str) -> str:
    return await second.ainfer(await first.ainfer(text))
"""

ALL = {"first", "second", "both"}


class Reloading:
    """A file of models, the runtime that has them, and a clock to settle its changes with."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.write(reloaded_app=APP, reloaded_words="word = 'one'", **files)
        self.reloader = Reloader(
            [str(folder / "reloaded_app.py")], [str(folder / "labels")], clock=self.clock
        )
        self.reloader.watch()
        self.runtime = wherry.Runtime(*self.reloader.first())

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def save(self, **files: str) -> set[str]:
        """Save files, and reload. Returns the names of the models that are others now."""
        before = {one.name: one for one in self.runtime.models()}
        self.write(**files)
        self.look()
        now = {one.name: one for one in self.runtime.models()}
        return {name for name in before.keys() | now if before.get(name) is not now.get(name)}

    def look(self) -> bool:
        self.reloader.look(self.runtime)
        self.clock.advance(SETTLE_SECONDS)
        return self.reloader.look(self.runtime)


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Reloading]:
    modules, path = set(sys.modules), list(sys.path)
    made = Reloading(tmp_path)
    try:
        with made.runtime:
            yield made
            made.reloader.close()
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("reloaded_"):
                del sys.modules[name]


def test_what_is_saved_is_loaded_anew(reloading: Reloading) -> None:
    infer = reloading.runtime.infer
    assert reloading.save(reloaded_app=APP.replace("second {", "third {")) == ALL
    assert (infer("first", "a"), infer("both", "a")) == ("one a", "third one a")
    # The same size, and perhaps the same second: Python's compiled file looks fresh.
    assert reloading.save(reloaded_words="word = 'two'") == ALL
    assert (infer("second", "a"), infer("both", "a")) == ("third a", "third two a")
    assert not reloading.look()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"reloaded_app": APP + "\ndef ("}, "SyntaxError"),
        ({"reloaded_app": APP + "\nimport nothing_of_this_name"}, "nothing_of_this_name"),
        ({"reloaded_app": ""}, "no models"),
        ({"reloaded_words": "word = 1 / 0"}, "ZeroDivisionError"),
        ({"reloaded_words": "raise SystemExit"}, "SystemExit"),
        ({"reloaded_app": APP.replace("(text: str)", "(text)")}, "text"),
    ],
)
def test_a_mistake_is_told_and_what_was_loaded_serves_on(
    reloading: Reloading, caplog: pytest.LogCaptureFixture, files: dict[str, str], told: str
) -> None:
    assert reloading.save(**files) == set()
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "serves on" in error.getMessage()
    assert told in error.getMessage() + getattr(error, "traceback", "")
    assert reloading.runtime.infer("both", "a") == "second one a"
    assert reloading.save(reloaded_app=APP, reloaded_words="word = 'two'") == ALL
    assert reloading.runtime.infer("both", "a") == "second two a"


def test_a_model_that_cannot_be_loaded_costs_the_others_nothing(
    reloading: Reloading, caplog: pytest.LogCaptureFixture
) -> None:
    broken = "class Broken(wherry.Model):\n    def execute(self, a: str) -> str: return a\n"
    broken += "    def load(self, device): raise OSError('no weights')\n"
    text = APP.replace("second {", "third {") + broken
    assert reloading.save(reloaded_app=text) == ALL
    assert "no weights" in caplog.text
    # It is tried again at the next change, whatever that is.
    assert reloading.save(reloaded_app=text.replace("raise OSError('no weights')", "pass")) == {
        *ALL,
        "broken",
    }


def test_models_come_and_go(reloading: Reloading) -> None:
    extra = "\n@wherry.model\ndef third(text: str) -> str:\n    return text\n"
    assert reloading.save(reloaded_app=APP + extra) == {*ALL, "third"}
    assert reloading.save(reloaded_app=APP) == {*ALL, "third"}
    with pytest.raises(ModelNotFound):
        reloading.runtime.infer("third", "a")


def test_a_running_request_ends_in_the_model_that_it_began_in(reloading: Reloading) -> None:
    slow = APP + (
        "\nimport reloaded_gate\n@wherry.model\ndef slow(text: str) -> str:\n"
        "    reloaded_gate.begun.set()\n    reloaded_gate.open.wait()\n    return 'old ' + text\n"
        "\n@wherry.pipeline\nasync def over(text: str) -> str:\n"
        "    return await first.ainfer(await slow.ainfer(text))\n"
    )
    gate = "import threading\nbegun, open = threading.Event(), threading.Event()\n"
    assert reloading.save(reloaded_gate=gate, reloaded_app=slow) == {*ALL, "slow", "over"}
    begun: threading.Event = sys.modules["reloaded_gate"].begun
    opened: threading.Event = sys.modules["reloaded_gate"].open
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(reloading.runtime.infer, name, "a") for name in ("slow", "over")]
        try:
            assert begun.wait(30)
            new = slow.replace("old ", "new ").replace("reloaded_gate.open.wait()", "pass")
            assert reloading.save(reloaded_app=new, reloaded_words="word = 'two'") >= {"slow"}
            assert reloading.runtime.infer("over", "a") == "two new a"
        finally:
            opened.set()
    assert answers[0].result() == "old a"
    assert answers[1].result().endswith("a")


def test_files_that_are_being_written_are_left_alone_until_all_are(reloading: Reloading) -> None:
    reloading.write(reloaded_words="word = 'two'")
    assert not reloading.reloader.look(reloading.runtime)
    reloading.clock.advance(SETTLE_SECONDS)
    reloading.write(reloaded_app=APP.replace("second {", "third {"))
    assert not reloading.reloader.look(reloading.runtime)
    reloading.clock.advance(SETTLE_SECONDS)
    assert reloading.reloader.look(reloading.runtime)
    assert reloading.runtime.infer("both", "a") == "third two a"


def test_a_file_that_an_import_missed_is_seen_when_it_comes(reloading: Reloading) -> None:
    text = APP.replace("reloaded_words", "reloaded_late")
    assert reloading.save(reloaded_app=text) == set()
    assert reloading.save(reloaded_late="word = 'late'") == ALL
    assert reloading.runtime.infer("first", "a") == "late a"


def test_a_watched_file_is_every_models(reloading: Reloading) -> None:
    (reloading.folder / "labels").write_text("a\nb")
    assert reloading.look()
    (reloading.folder / "labels").write_text("a\nb\nc")
    before = {one.name: one for one in reloading.runtime.models()}
    assert reloading.look()
    assert all(before[one.name] is not one for one in reloading.runtime.models())


def test_a_name_of_another_model_is_not_taken(
    reloading: Reloading, caplog: pytest.LogCaptureFixture
) -> None:
    @wherry.model
    def mine(text: str) -> str:
        return "mine"

    reloading.runtime.load(mine)
    taken = "\n@wherry.model\ndef mine(text: str) -> str:\n    return 'theirs'\n"
    assert reloading.save(reloaded_app=APP + taken) == ALL
    assert "another model is called 'mine'" in caplog.text
    assert reloading.runtime.infer("mine", "a") == "mine"


def test_a_runtime_is_not_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "reloaded_runtime.py").write_text("import wherry\nall = wherry.Runtime()\n")
    with pytest.raises(ConfigError, match="is a Runtime"):
        Reloader([f"{tmp_path}/reloaded_runtime.py:all"]).first()
    del sys.modules["reloaded_runtime"]


def test_a_file_that_is_replaced_with_its_old_time_and_size_is_seen(reloading: Reloading) -> None:
    file = reloading.folder / "reloaded_words.py"
    before = file.stat()
    copy = reloading.folder / "copy"
    copy.write_text("word = 'two'")
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.replace(file)  # as `cp -p` or `rsync -t` leave it
    assert reloading.look()
    assert reloading.runtime.infer("first", text="x") == "two x"
