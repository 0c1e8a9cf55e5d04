"""May two repositories have models of one name, and which of them is meant?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.repositories import CONFIG, save, save_ensemble
from tests.unit.runtime.test_control import ask, controlled
from wherry.runtime.control import ModelStatus
from wherry.values.errors import ConfigError, InvalidRequest, ModelNotFound

AMBIGUOUS = "There are 2 identifiers of model 'm' in global map, model namespace must be provided"


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[Path, Path]:
    """m adds 1 in the first and 20 in the second; of each an ensemble over m."""
    first, second = tmp_path / "first", tmp_path / "second"
    save(first, "m", 1)
    save(second, "m", 20)
    save(second, "alone", 5)
    save_ensemble(first, "e_one", "m", "m")
    save_ensemble(second, "e_two", "m", "m")
    return first, second


def test_an_ensembles_members_are_those_of_its_own_repository(
    repositories: tuple[Path, Path],
) -> None:
    with controlled(*repositories, namespaces=True) as control:
        assert (ask(control, "e_one"), ask(control, "e_two")) == (2, 40)
        assert ask(control, "alone") == 5
        assert [f"{one.name} {one.state}" for one in control.index()] == [
            "alone READY", "e_one READY", "e_two READY", "m READY", "m READY",
        ]  # fmt: skip


def test_a_name_that_several_have_is_refused_and_a_key_is_not(
    repositories: tuple[Path, Path],
) -> None:
    with controlled(*repositories, namespaces=True) as control:
        with pytest.raises(InvalidRequest, match=AMBIGUOUS):
            ask(control, "m")
        assert (ask(control, "1::m"), ask(control, "2::m")) == (1, 20)
        assert control.runtime.names() == {"alone", "e_one", "e_two", "1::m", "2::m"}
        with pytest.raises(ModelNotFound, match=r"unknown model: 'm' is not found"):
            ask(control, "3::m")


def test_without_namespaces_neither_is_served(repositories: tuple[Path, Path]) -> None:
    with controlled(*repositories, exit_on_error=False) as control:
        with pytest.raises(ModelNotFound):
            ask(control, "m")
        (row,) = [one for one in control.index() if one.name == "m"]
        assert row == ModelStatus(
            "m", "", "UNAVAILABLE", "model appears in two or more repositories"
        )


def test_a_load_and_an_unload_mean_all_models_of_the_name(
    repositories: tuple[Path, Path],
) -> None:
    with controlled(*repositories, namespaces=True, mode="explicit") as control:
        control.load("m")
        with pytest.raises(InvalidRequest, match=AMBIGUOUS):
            ask(control, "m")

        control.unload("2::m")

        assert ask(control, "m") == 1
        control.unload("m")
        with pytest.raises(ModelNotFound):
            ask(control, "m")


def test_an_ensemble_brings_its_own_member_and_leaves_the_other(
    repositories: tuple[Path, Path],
) -> None:
    with controlled(*repositories, namespaces=True, mode="explicit") as control:
        control.load("e_two")
        assert (ask(control, "e_two"), ask(control, "m")) == (40, 20)
        control.load("e_one")
        assert ask(control, "e_one") == 2

        control.unload("e_one", dependents=True)

        assert ask(control, "m") == 20


def test_a_member_that_is_gone_is_looked_for_in_the_others(
    repositories: tuple[Path, Path],
) -> None:
    first, _ = repositories
    with controlled(
        *repositories, namespaces=True, mode="poll", poll_seconds=1000, settle_seconds=0
    ) as control:
        shutil.move(first / "m", first.parent / "away")
        control.poll()
        assert (ask(control, "e_one"), ask(control, "m")) == (40, 20)

        shutil.move(first.parent / "away", first / "m")
        control.poll()
        assert ask(control, "e_one") == 40  # what has just changed is loaded at the next look
        control.poll()

        assert (ask(control, "e_one"), ask(control, "e_two")) == (2, 40)
        with pytest.raises(InvalidRequest, match=AMBIGUOUS):
            ask(control, "m")


def test_a_member_that_two_other_repositories_have_is_ambiguous(tmp_path: Path) -> None:
    for number, repository in enumerate(("a", "b"), 1):
        save(tmp_path / repository, "m", number)
    save_ensemble(tmp_path / "c", "e_m", "m")
    repositories = [tmp_path / name for name in "abc"]
    with controlled(*repositories, namespaces=True, mode="explicit") as control:
        with pytest.raises(ConfigError, match="not available or ambiguous"):
            control.load("e_m")
        shutil.rmtree(tmp_path / "b" / "m")

        control.load("e_m")

        assert ask(control, "e_m") == 1


def test_the_metrics_of_models_have_the_repository_and_the_models_own_tags(
    repositories: tuple[Path, Path],
) -> None:
    first, second = repositories
    save(first, "m", 1, config=CONFIG + 'metric_tags { key: "team" value: "blue" }')
    with controlled(first, second, namespaces=True) as control:
        labels = [one.model.metric_labels for one in control.runtime.models() if one.name == "m"]
    assert sorted(labels, key=len) == [
        {"namespace": str(second)},
        {"namespace": str(first), "_team": "blue"},
    ]
