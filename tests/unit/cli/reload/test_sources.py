"""cli/reload/sources.py: what of a user's code a model needs."""

from pathlib import Path

import pytest

from wherry.cli.reload.sources import Sources

APP = """
'''Models.'''
import math
import torch
import words.sizes
from words import shout, whisper
from plain import *

LIMIT = 3
scale, offset = 2, 1
settings = {}

def clip(text):
    return text[:LIMIT]

@wherry.model
def first(text: str) -> str:
    return shout(clip(text))

@wherry.model(max_batch_size=4)
def second(values):
    limit = scale
    return [words.sizes.size(value) for value in values]

class Third(Base):
    prefix = offset
    def execute(self, text: list[str]) -> list[str]:
        from late import lookup
        return lookup(text)

third = Third()

@wherry.pipeline
async def both(text):
    return await first.ainfer(text) + await third.ainfer(text)

if __name__ == "__main__":
    wherry.Server(first).run()
"""
FILES = {
    "app.py": APP,
    "plain.py": "class Base: ...\n",
    "late.py": "def lookup(text): return text\ndef unused(): ...\n",
    "words/__init__.py": "from .loud import shout\nfrom .quiet import whisper\n",
    "words/loud.py": "from . import tables\ndef shout(text): return tables.UPPER[text]\n",
    "words/quiet.py": "def whisper(text): return text\n",
    "words/tables.py": "UPPER = {}\n",
    "words/sizes.py": "def size(value): return 1\n",
}
MODELS = ("first", "second", "third", "both")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def digests(folder: Path) -> dict[str, str]:
    sources = Sources([folder])
    return {name: sources.digest(folder / "app.py", name) for name in MODELS}


def others(folder: Path, file: str, old: str, new: str) -> set[str]:
    """The models for which a change of this file is one."""
    write(folder, FILES)
    before = digests(folder)
    assert old in FILES[file]
    write(folder, {file: FILES[file].replace(old, new)})
    after = digests(folder)
    return {name for name in MODELS if before[name] != after[name]}


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("app.py", "shout(clip(text))", "shout(text)", {"first", "both"}),
        ("app.py", "max_batch_size=4", "max_batch_size=8", {"second"}),
        ("app.py", "lookup(text)", "lookup(text) * 2", {"third", "both"}),
        ("app.py", "await first.ainfer(text) +", "", {"both"}),
        # By a name that is used, directly or not; a local name is not the module's.
        ("app.py", "LIMIT = 3", "LIMIT = 4", {"first", "both"}),
        ("app.py", "scale, offset = 2", "scale, offset = 3", {"second", "third", "both"}),
        ("app.py", "third = Third()", "third = Third(1)", {"third", "both"}),
        # Whatever may do anything is everyone's.
        ("app.py", "settings = {}", "settings = {}\nsettings['a'] = 1", set(MODELS)),
        ("app.py", "settings = {}", "import logging; logging.basicConfig()", set(MODELS)),
        ("app.py", "settings = {}", "@register\ndef other(): ...", set(MODELS)),
        # Neither comments and places, nor what nobody uses or runs as a script only.
        ("app.py", "LIMIT = 3", "# so many\nLIMIT = (3)", set()),
        ("app.py", "'''Models.'''", "'''All models.'''", set()),
        ("app.py", "settings = {}", "def unused(): ...", set()),
        ("app.py", "Server(first)", "Server(second)", set()),
        # Other files.
        ("words/tables.py", "{}", "{'a': 'A'}", {"first", "both"}),
        ("words/quiet.py", "return text", "return ''", set()),
        ("words/sizes.py", "return 1", "return 2", {"second"}),
        ("late.py", "lookup(text): return", "lookup(text): return 2 *", {"third", "both"}),
        ("late.py", "unused(): ...", "unused(): pass", set()),
        ("words/__init__.py", "from .loud", "print()\nfrom .loud", {"first", "second", "both"}),
        ("plain.py", "Base: ...", "Base: a = 1", set(MODELS)),  # import *: it may be anyone's
    ],
)
def test_a_change_is_one_of_the_models_that_need_what_has_changed(
    tmp_path: Path, file: str, old: str, new: str, expected: set[str]
) -> None:
    assert others(tmp_path, file, old, new) == expected


def test_the_files_are_those_that_are_imported_and_the_users(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, "unused.py": "", "torch_helpers.py": "", "wherry_notes.py": ""})
    files = Sources([tmp_path]).files([tmp_path / "app.py"])
    assert {str(file.relative_to(tmp_path)) for file in files} == set(FILES)


def test_a_mistake_and_a_circle_are_no_problem(tmp_path: Path) -> None:
    write(tmp_path, {"app.py": "import a\nfirst = a", "a.py": "import b", "b.py": "import a\n)"})
    sources = Sources([tmp_path])
    assert len(sources.files([tmp_path / "app.py"])) == 3
    assert sources.digest(tmp_path / "app.py", "first")
    assert sources.digest(tmp_path / "missing.py", "first")
