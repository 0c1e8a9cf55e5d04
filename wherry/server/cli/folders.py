"""Is this folder a model repository, and if not, what was meant?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from wherry.core.api import ConfigError
from wherry.triton.api import is_remote

log = logging.getLogger("wherry")

#: How much of a file is looked at to see whether it has models.
_LOOK_BYTES = 64 << 10
_MODEL_FILES = (".onnx", ".pt", ".pt2", ".xml", ".ubj", ".tl", ".plan", ".savedmodel")


def check_repositories_exist(
    folders: Sequence[str], mode: str, *, exit_on_error: bool = True
) -> None:
    """ConfigError, with what was looked for and what is likely meant, for one without a model.

    Where models may come later (modes poll and explicit) an empty folder is none. What is wrong is
    logged only, if an error is not to end the server.
    """
    for folder in folders:
        try:
            _check_repository(folder, mode)
        except ConfigError as error:
            if exit_on_error:
                raise
            log.warning("not a model repository", extra={"folder": folder, "why": str(error)})


def _check_repository(folder: str, mode: str) -> None:
    if is_remote(folder):
        return  # it is asked when the models are to be loaded
    path = Path(folder)
    if not path.exists():
        raise ConfigError(f"model repository {folder}: No such file or directory")
    if not path.is_dir():
        raise ConfigError(f"model repository {folder}: it is a file: name a folder of models")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(f"model repository {folder}: {error.strerror}") from None
    entries = [one for one in entries if not one.name.startswith(".")]
    folders_here = [one for one in entries if one.is_dir() and one.name != "__pycache__"]
    if any(_is_model(one) for one in folders_here):
        return
    if not entries and mode != "none":
        log.warning("model repository is empty", extra={"folder": folder, "mode": mode})
        return
    raise ConfigError(_explained(path, entries, folders_here))


def _is_model(folder: Path) -> bool:
    """Whether the folder looks like a model of a repository, also one with mistakes."""
    try:
        return any(
            entry.name in ("configs", "config.pbtxt") or (entry.name.isdigit() and entry.is_dir())
            for entry in folder.iterdir()
        )
    except OSError:
        return True  # what is wrong is told when it is to be loaded


def _explained(path: Path, entries: Sequence[Path], folders: Sequence[Path]) -> str:
    found = "it is empty"
    if folders:
        some = ", ".join(one.name for one in folders[:5]) + (" ..." if len(folders) > 5 else "")
        found = f"its folders ({some}) have neither"
    elif entries:
        found = "it has no folders"
    meant = _meant(path, entries)
    return (
        f"{path} is no model repository: looked for MODEL/config.pbtxt and MODEL/1 in it, but"
        f" {found}" + (f"; {meant}" if meant else "")
    )


def _meant(path: Path, entries: Sequence[Path]) -> str:
    names = {one.name for one in entries}
    if _is_model(path):
        return f"it looks like a model itself: did you mean `wherry serve {path.resolve().parent}`?"
    files = sorted(
        (one for one in entries if one.suffix == ".py"), key=lambda p: p.name != "app.py"
    )
    for file in files:
        if _has_models(file):
            return f"did you mean `wherry serve {file}`?"
    if "config.json" in names and any(n.endswith((".safetensors", ".bin")) for n in names):
        return (
            f"it looks like a language model's checkpoint: did you mean `wherry serve llm:{path}`?"
        )
    for one in entries:
        if one.suffix == ".gguf":
            return f"did you mean `wherry serve llm:{one}`?"
        if one.suffix in _MODEL_FILES:
            place = path / one.stem / "1" / f"model{one.suffix}"
            return f"put {one.name} where a repository has it: {place}"
    if "wherry.toml" in names:
        return f"did you mean `wherry serve --config {path / 'wherry.toml'}`, with a target?"
    if files:
        return f"did you mean `wherry serve {files[0]}`? It does not import wherry"
    return ""


def _has_models(file: Path) -> bool:
    try:
        with file.open("rb") as source:
            return b"wherry" in source.read(_LOOK_BYTES)
    except OSError:
        return False
