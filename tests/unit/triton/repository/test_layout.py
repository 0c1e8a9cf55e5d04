from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wherry.triton.repository import layout
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonVersionPolicy,
    TritonVersionPolicyAll,
    TritonVersionPolicyLatest,
    TritonVersionPolicySpecific,
)


def scan(folders: list[str], **how: Any) -> list[layout.Found]:
    return [layout.look(name, folders, **how) for name in sorted(layout.names(folders))]


def model(repository: Path, name: str, config: str | None = None, *versions: str) -> Path:
    folder = repository / name
    for version in versions or ["1"]:
        (folder / version).mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder


def test_every_folder_is_a_model(tmp_path: Path) -> None:
    model(tmp_path, "b")
    model(tmp_path, "a", "max_batch_size: 4")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "README.md").touch()

    found = scan([str(tmp_path)])

    assert [one.name for one in found] == ["a", "b"]
    assert [one.versions for one in found] == [(1,), (1,)]
    assert [one.problems for one in found] == [(), ()]
    assert [one.config for one in found] == [
        TritonConfig(name="a", max_batch_size=4),
        TritonConfig(name="b"),
    ]


def test_versions_are_whole_numbers_without_a_leading_zero(tmp_path: Path) -> None:
    model(tmp_path, "m", "version_policy { all { } }", "10", "9", "0", "01", "1a", "v2", "data")

    (found,) = scan([str(tmp_path)])

    assert found.versions == (9, 10)
    assert found.notices == tuple(
        f"folder {name!r} is not a version, as 1, 2 and 10 are" for name in ("0", "01", "1a", "v2")
    )


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (None, [12]),
        (TritonVersionPolicy(), [12]),
        (TritonVersionPolicy(latest=TritonVersionPolicyLatest(num_versions=2)), [3, 12]),
        (TritonVersionPolicy(latest=TritonVersionPolicyLatest(num_versions=9)), [1, 3, 12]),
        (TritonVersionPolicy(all=TritonVersionPolicyAll()), [1, 3, 12]),
        (TritonVersionPolicy(specific=TritonVersionPolicySpecific(versions=[12, 1, 7])), [1, 12]),
        (TritonVersionPolicy(specific=TritonVersionPolicySpecific(versions=[7])), []),
    ],
)
def test_the_policy_chooses_versions(
    policy: TritonVersionPolicy | None, versions: list[int]
) -> None:
    assert layout.chosen(policy, [12, 1, 3]) == versions


def test_all_that_is_wrong_with_a_model_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(
        'name: "n"\noutput { name: "o" data_type: TYPE_FP32 dims: 1 label_filename: "l.txt" }'
    )

    (found,) = scan([str(tmp_path)])

    assert found.problems == (
        "m: name: 'n' is not the folder's name; rename the folder to 'n', or leave out the name",
        "m: it has no version: put the model's file into the folder m/1",
        "m: output[0].label_filename: no file 'l.txt'",
    )


def test_a_broken_file_is_told_with_its_lines_beside_all_else(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_bytes(b'name: "m"\nbackend: "\xff"\n')

    (found,) = scan([str(tmp_path)])

    assert found.problems == (
        "m/config.pbtxt:2: it is not UTF-8 text",
        "m: it has no version: put the model's file into the folder m/1",
    )


def test_a_file_of_an_editor_that_writes_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    model(tmp_path, "m", "\ufeffmax_batch_size: 4", "1")

    (found,) = scan([str(tmp_path)])

    assert (found.config.max_batch_size, found.problems) == (4, ())


def test_what_a_broken_file_says_before_the_mistake_counts(tmp_path: Path) -> None:
    """An ensemble needs no version, and its kind is told before the line that cannot be read."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.pbtxt").write_text('platform: "ensemble"\nname: "n"\nmax_batch_size: ]')

    (found,) = scan([str(tmp_path)])

    assert [problem.split(";")[0] for problem in found.problems] == [
        "m/config.pbtxt:3: max_batch_size: expected a whole number, not ']'",
        "m: name: 'n' is not the folder's name",
    ]


def test_parameters_that_a_template_left_open_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text(
        'backend: "python"\n'
        'parameters { key: "tokenizer_dir" value { string_value: "${tokenizer_dir}" } }\n'
        'parameters { key: "cost" value { string_value: "$5" } }\n'
    )

    (found,) = scan([str(tmp_path)])

    assert found.problems == ()
    assert found.notices == ("parameters tokenizer_dir: ${...} is not filled in",)


def test_a_policy_that_chooses_nothing_is_a_problem(tmp_path: Path) -> None:
    model(tmp_path, "m", "version_policy { specific { versions: [2, 3] } }")

    (found,) = scan([str(tmp_path)])

    assert found.problems == ("m: version_policy chooses none of its versions [1]",)
    assert found.notices == ("version 2 is not there", "version 3 is not there")


def test_a_name_in_two_repositories_is_in_none(tmp_path: Path) -> None:
    repositories = [str(tmp_path / "a"), str(tmp_path / "b")]
    for repository in repositories:
        model(Path(repository), "m")
    model(tmp_path / "b", "n")

    m, n = scan(repositories)

    assert m.problems == (
        "m: model appears in two or more repositories: 1 and 2: none of them is served",
    )
    assert m.in_several
    assert n.problems == ()


def test_the_same_repository_twice_is_one(tmp_path: Path) -> None:
    model(tmp_path, "m")

    (found,) = scan([str(tmp_path), f"{tmp_path}/."])

    assert found.problems == ()


def test_a_named_configuration_stands_in_for_the_usual_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        model(tmp_path, name, "max_batch_size: 1")
    (tmp_path / "a" / "configs").mkdir()
    (tmp_path / "a" / "configs" / "large.pbtxt").write_text("max_batch_size: 64")

    found = scan([str(tmp_path)], config_name="large")

    assert [one.config.max_batch_size for one in found] == [64, 1]


def test_an_ensemble_needs_no_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(
        """platform: "ensemble"
        input { name: "i" data_type: TYPE_FP32 dims: 1 }
        output { name: "o" data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling { step { model_name: "m" input_map { key: "x" value: "i" }
                                     output_map { key: "y" value: "o" } } }"""
    )

    (found,) = scan([str(tmp_path)])

    assert found.versions == (1,)
    assert found.problems == ()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../m", "m/1", "/etc", ".hidden", "m\0", "missing"]
)
def test_a_name_does_not_lead_out_of_the_repository(tmp_path: Path, name: str) -> None:
    model(tmp_path / "repository", "m")
    model(tmp_path, "n")

    with pytest.raises(FileNotFoundError):
        layout.look(name, [str(tmp_path / "repository")])


def test_a_file_that_changes_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = model(tmp_path, "m", "")
    before = layout.fingerprint(str(folder))

    (folder / "1" / "model.py").write_text("x = 1")
    with_file = layout.fingerprint(str(folder))
    (folder / "1" / "__pycache__").mkdir()
    (folder / "1" / "__pycache__" / "model.pyc").touch()

    assert before != with_file
    assert layout.fingerprint(str(folder)) == with_file


def test_a_name_that_no_model_may_have_is_told_before_the_model_is_run(tmp_path: Path) -> None:
    model(tmp_path, "a;b", 'backend: "python"')

    (found,) = scan([str(tmp_path)])

    assert found.problems == (
        "Invalid stub name: contains invalid characters: model name 'a;b': use letters, digits,"
        " '_', '-' and '.' only",
    )
