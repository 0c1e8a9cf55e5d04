"""core/values/plugins.py: what packages bring, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from tests.plugins import install
from wherry.core.values.errors import ConfigError
from wherry.core.values.plugins import Plugins


class Animal:
    def __init__(self, name: str = "") -> None:
        self.name = name


class Dog(Animal): ...


class Stone: ...


@runtime_checkable
class Swims(Protocol):
    def swim(self) -> None: ...
    def dive(self) -> None: ...


class Duck:
    def swim(self) -> None: ...


def stone(name: str = "") -> Stone:
    return Stone()


HERE = __name__
ANIMALS = Plugins("animal", Animal, {"own": f"{HERE}:Animal", "lost": "nothing_of_this_name:A"})


def bring(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, **entries: str) -> None:
    install(monkeypatch, folder, "wherry.animals", entries, name=name)


def test_a_package_brings_what_wherry_has_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bring(monkeypatch, tmp_path, "kennel", dog=f"{HERE}:Dog")
    assert list(ANIMALS) == ["own", "lost", "dog"]
    assert "dog" in ANIMALS
    assert "cat" not in ANIMALS
    made = ANIMALS.make("dog", "Rex")
    assert (type(made), made.name) == (Dog, "Rex")
    assert type(ANIMALS.make("own")) is Animal


def test_wherrys_own_is_found_without_a_look_at_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(**_: str) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr("importlib.metadata.entry_points", look)
    assert ANIMALS.load("own") is Animal
    assert "own" in ANIMALS


def test_no_package_takes_the_place_of_wherrys_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bring(monkeypatch, tmp_path, "kennel", own=f"{HERE}:Dog")
    assert ANIMALS.load("own") is Animal
    assert list(ANIMALS) == ["own", "lost"]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("nothing_of_this_name:Dog", "cannot be imported: ModuleNotFoundError: .*nothing_of"),
        (f"{HERE}:Cat", "cannot be imported: AttributeError: .*'Cat'"),
        (f"{HERE}:HERE", "is '.*', not a .*Animal"),
        (f"{HERE}:Stone", "is <class '.*Stone'>, not a .*Animal"),
        (f"{HERE}:stone", "makes a Stone, which is not a .*Animal"),
    ],
)
def test_a_wrong_one_is_told_with_its_package_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, told: str
) -> None:
    bring(monkeypatch, tmp_path, "kennel", dog=f"{HERE}:Dog", bad=where)
    remedy = "; update kennel, or uninstall it"
    with pytest.raises(ConfigError, match=f"^the animal 'bad' of kennel 1 {told}.*{remedy}$"):
        ANIMALS.make("bad")
    assert type(ANIMALS.make("dog")) is Dog


def test_what_it_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "wherry.swimmers", {"duck": f"{HERE}:Duck"}, name="pond")
    with pytest.raises(ConfigError, match=r"makes a Duck without dive, which is not a .*Swims"):
        Plugins("swimmer", Swims).make("duck")


def test_a_function_is_no_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bring(monkeypatch, tmp_path, "kennel", bad=f"{HERE}:stone")
    with pytest.raises(ConfigError, match=r"is <function stone .*, not a .*Animal"):
        Plugins("animal", Animal, only_classes=True).load("bad")


def test_a_name_that_two_packages_bring_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("kennel", "pound"):
        bring(monkeypatch, tmp_path, package, dog=f"{HERE}:Dog")
    with pytest.raises(
        ConfigError, match=r"^the animal 'dog' comes from kennel 1 and pound 1: uninstall all but"
    ):
        ANIMALS.load("dog")


def test_a_name_that_no_package_brings_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"provides the animal 'cat'; available: own, lost$"):
        ANIMALS.load("cat")


def test_an_own_one_without_its_library_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"'lost' cannot be imported: .*install wherry\[lost\]"):
        ANIMALS.load("lost")
