"""Which models do these folders hold, in which versions, and what is wrong with them?

    REPOSITORY/MODEL/config.pbtxt, labels, 1/model.py, 2/model.py

Nothing is kept: each call looks at the files as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from wherry.core.api import wrong_name
from wherry.triton.repository import pbtxt
from wherry.triton.repository.normalise import is_ensemble
from wherry.triton.repository.schema import BadConfig, is_blank
from wherry.triton.repository.triton_config import TritonConfig, TritonVersionPolicy
from wherry.triton.repository.validate import without_effect

#: Most bytes of a config.pbtxt, which is read whole.
MAX_CONFIG_BYTES = 16 << 20
#: No file system has a longer one.
MAX_NAME_CHARS = 255

IN_SEVERAL = "model appears in two or more repositories"

#: Folders that a running model writes: their files do not count as a change of the model.
_NOT_PART_OF_IT = ("__pycache__", ".git")

#: Name, modification time and size of every file of a model.
Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    folder: str
    config: TritonConfig = field(default_factory=TritonConfig)
    #: The versions that the version policy chooses, lowest first.
    versions: tuple[int, ...] = ()
    #: All reasons why it cannot be loaded, each with its file and line if it has one.
    problems: tuple[str, ...] = ()
    #: Warnings: fields without effect, folders that are not versions.
    notices: tuple[str, ...] = ()
    #: Whether more than one repository has it; then none of them is served.
    in_several: bool = False


def names(repositories: Sequence[str]) -> set[str]:
    return {
        entry.name
        for repository in repositories
        for entry in os.scandir(repository)
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__pycache__"
    }


def look(name: str, repositories: Sequence[str], *, config_name: str | None = None) -> Found:
    """Read a model of the repositories. FileNotFoundError if there is no model of this name."""
    folders = folders_of(name, repositories)
    if not folders:
        raise FileNotFoundError(name)
    if len(folders) > 1:
        # Repositories are named by number: clients see this text, and must not see paths.
        roots = [os.path.abspath(repository) for repository in repositories]
        places = " and ".join(str(roots.index(os.path.dirname(f)) + 1) for f in folders)
        problem = f"{name}: {IN_SEVERAL}: {places}: none of them is served"
        return Found(name, folders[0], problems=(problem,), in_several=True)
    return read(folders[0], config_name=config_name)


def is_name(name: str) -> bool:
    """Whether this is a plain file name: names come from clients, and must not lead out of the
    repository."""
    return (
        0 < len(name) <= MAX_NAME_CHARS
        and not name.startswith(".")
        and not {"/", os.sep, "\0"} & set(name)
    )


def folders_of(name: str, repositories: Sequence[str]) -> list[str]:
    """The folders of the models with this name: more than one is a mistake of the operator's."""
    if not is_name(name):
        return []
    folders = dict.fromkeys(os.path.join(os.path.abspath(r), name) for r in repositories)
    return [folder for folder in folders if os.path.isdir(folder)]


def read(
    folder: str, *, config: TritonConfig | None = None, config_name: str | None = None
) -> Found:
    """The model of this folder; with `config` in place of its file."""
    name = os.path.basename(folder)
    problems: list[str] = []
    if config is None:
        try:
            config, problems = _config(folder, config_name)
        except BadConfig as error:
            problems += error.problems
            config = TritonConfig()
    if config.name not in ("", name):
        remedy = f"rename the folder to {config.name!r}, or leave out the name"
        problems.append(f"{name}: name: {config.name!r} is not the folder's name; {remedy}")
    if wrong := wrong_name(name):
        # Clients of Triton's Python backend know these words.
        stub = "Invalid stub name: contains invalid characters: "
        problems.append((stub if config.backend == "python" else "") + wrong)
    config = msgspec.structs.replace(config, name=name)
    there, ignored = _versions(folder)
    if is_ensemble(config) and not there:
        there = [1]  # an ensemble has no files, and needs no version folder
    versions = chosen(config.version_policy, there)
    notices = [f"folder {entry!r} is not a version, as 1, 2 and 10 are" for entry in ignored]
    notices += [f"{key} has no effect: {why}" for key, why in without_effect(config)]
    if blanks := [key for key, value in config.parameters.items() if is_blank(value.string_value)]:
        notices.append(f"parameters {', '.join(blanks)}: ${{...}} is not filled in")
    specific_versions = _specific(config.version_policy)
    notices += [
        f"version {version} is not there" for version in sorted(specific_versions - set(there))
    ]
    if not there:
        problems.append(f"{name}: it has no version: put the model's file into the folder {name}/1")
    elif not versions:
        problems.append(f"{name}: version_policy chooses none of its versions {there}")
    problems += _missing_labels(name, folder, config)
    return Found(name, folder, config, tuple(versions), tuple(problems), tuple(notices))


def chosen(policy: TritonVersionPolicy | None, there: Sequence[int]) -> list[int]:
    """The versions that the policy serves, lowest first; without a policy the highest one."""
    versions = sorted(there)
    if policy is not None and policy.all is not None:
        return versions
    if policy is not None and policy.specific is not None:
        return [version for version in versions if version in policy.specific.versions]
    count = policy.latest.num_versions if policy is not None and policy.latest is not None else 1
    return versions[-count:]


def fingerprint(folder: str) -> Fingerprint:
    """A value that changes whenever a file of the model does. Files that disappear while it is
    taken are left out."""
    return tuple(sorted(_files(folder)))


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_PART_OF_IT]
        for name in (*files, *folders):
            path = os.path.join(parent, name)
            try:
                about = os.stat(path)
            except OSError:
                continue
            # Only of files: a folder's time changes with the folders that are left out, too.
            size = about.st_size if name in files else 0
            yield path, about.st_mtime_ns if name in files else 0, size


def _config(folder: str, config_name: str | None) -> tuple[TritonConfig, list[str]]:
    """The model's configuration file as far as it can be read, and its problems; an empty
    configuration if there is none."""
    name = os.path.basename(folder)
    for file in ([f"configs/{config_name}.pbtxt"] if config_name else []) + ["config.pbtxt"]:
        where = f"{name}/{file}"
        try:
            with open(os.path.join(folder, file), "rb") as source:
                text = source.read(MAX_CONFIG_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadConfig([f"{where}: {error.strerror}"]) from None
        if len(text) > MAX_CONFIG_BYTES:
            raise BadConfig([f"{where}: it has more than {MAX_CONFIG_BYTES} bytes"])
        try:
            return pbtxt.read(text.decode("utf-8-sig"), where)
        except UnicodeDecodeError as error:
            line = text[: error.start].count(b"\n") + 1
            raise BadConfig([f"{where}:{line}: it is not UTF-8 text"]) from None
    return TritonConfig(), []


def _versions(folder: str) -> tuple[list[int], list[str]]:
    """The version folders, and folders whose names begin with a digit but are not versions."""
    there: list[int] = []
    ignored: list[str] = []
    for entry in os.scandir(folder):
        if not entry.is_dir() or not entry.name.lstrip("vV")[:1].isdigit():
            continue
        if entry.name.isascii() and entry.name.isdigit() and entry.name[0] != "0":
            there.append(int(entry.name))
        else:
            ignored.append(entry.name)
    return sorted(there), sorted(ignored)


def _specific(policy: TritonVersionPolicy | None) -> set[int]:
    return set(policy.specific.versions if policy and policy.specific else ())


def _missing_labels(name: str, folder: str, config: TritonConfig) -> list[str]:
    return [
        f"{name}: output[{index}].label_filename: no file {output.label_filename!r}"
        for index, output in enumerate(config.output)
        if output.label_filename and not os.path.isfile(os.path.join(folder, output.label_filename))
    ]
