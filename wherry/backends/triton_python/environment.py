"""Which Python runs a model's file?

The server's own, or that of the environment which the model's EXECUTION_ENV_PATH names: a folder
(a virtual environment, a conda environment) or an archive of one, as conda-pack makes it, which is
unpacked once and kept for the next start.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.values.errors import ConfigError

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What to start, with which environment variables."""

    python: str
    environment: Mapping[str, str]


def interpreter(model: str, folder: str, execution_env_path: str) -> Interpreter:
    """The Python for a model in `folder`. ConfigError if there is none. Unpacking may take long."""
    if not execution_env_path:
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        return Interpreter(sys.executable, {**os.environ, "PYTHONPATH": path})
    where = execution_env_path.replace(_MODEL_DIRECTORY, folder)
    if not os.path.isabs(where):
        where = os.path.join(folder, where)
    if os.path.isfile(where):
        where = str(_unpacked(model, Path(where)))
    python = os.path.join(where, "bin", "python")
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"model {model!r}: EXECUTION_ENV_PATH {execution_env_path!r} must be an environment's"
            " folder (with bin/python in it) or its .tar.gz"
        )
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    }
    environment["PATH"] = os.pathsep.join([os.path.join(where, "bin"), environment.get("PATH", "")])
    return Interpreter(python, environment)


def _unpacked(model: str, archive: Path) -> Path:
    """Where the archive lies unpacked: in a cache of this user, by what it is."""
    status = archive.stat()
    identity = f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "wherry" / "environments" / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="unpacking-") as unpacking:
        whole = Path(unpacking) / "environment"
        try:
            with tarfile.open(archive) as tar:
                # conda environments hold absolute links, which the filter "data" refuses.
                tar.extractall(whole, filter="tar")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise ConfigError(
                f"model {model!r}: EXECUTION_ENV_PATH {archive.name!r} cannot be unpacked: {error}"
            ) from None
        try:
            whole.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was quicker
                raise
    repair = place / "bin" / "conda-unpack"
    if repair.exists():  # its scripts know the place where it was packed
        subprocess.run([place / "bin" / "python", repair], check=False, stdin=subprocess.DEVNULL)
    return place
