"""What does somebody see who installs the wheel where there is nothing?

In an empty environment of one Python: how much is downloaded, what `import wherry` takes (and the
first use of `wherry.model`, which brings numpy), how long it is from nothing to the first answer of
a model, pip's time in it, whether all works that the README and some pages show, and whether the
packages of the extras are there for this Python.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.dist.build import ROOT
from tools.dist.sbom import SbomFailed, write_sbom

#: Promised in docs/how-to/install.md.
DOWNLOAD_MB, IMPORT_CPU_S, FIRST_ANSWER_S = 30.0, 0.15, 60.0

#: What the pages below show beyond the base.
PAGES_NEED = ("wherry[image,audio]", "scikit-learn", "tritonclient[http]")

#: An image classifier, a text pipeline, a Triton repository: what a new user would try.
PAGES = (
    "README.md", "docs/tutorial/first-model.md", "docs/how-to/files.md",
    "docs/how-to/chain-models.md", "docs/how-to/model-repository.md",
)  # fmt: skip

#: Whose packages must be there for each Python. Those of other engines have Pythons of their own.
EXTRAS = "audio,demo,grpc,image,llm,ocr,onnx,otel"

APP = """
import wherry

@wherry.model(max_batch_size=32)
def shout(text: list[str]) -> list[str]:
    return [t.upper() + "!" for t in text]
"""

#: Everything of the table of contents, but what an extra brings; and the command line's parts.
IMPORTS = """
import importlib, wherry
for name in wherry.__all__:
    if name != "Image":
        getattr(wherry, name)
importlib.import_module("wherry.testing")
print(wherry.__version__, wherry.__file__)
"""


@dataclass
class Trial:
    """What was seen with one Python; `failed` is what went wrong, and ends the trial."""

    python: str
    download_mb: float = 0.0
    installed_mb: float = 0.0
    import_cpu_s: float = 0.0
    model_cpu_s: float = 0.0
    first_answer_s: float = 0.0
    pages: str = "not run"
    failed: str = ""

    def problems(self) -> Iterator[str]:
        if self.failed:
            yield f"Python {self.python}: {self.failed}"
            return
        for figure, value, limit in (
            ("MB are downloaded", self.download_mb, DOWNLOAD_MB),
            ("s of CPU are taken by `import wherry`", self.import_cpu_s, IMPORT_CPU_S),
            ("s pass until the first answer", self.first_answer_s, FIRST_ANSWER_S),
        ):
            if value > limit:
                yield f"Python {self.python}: {value:.2f} {figure}, and {limit:g} are promised"


class Failed(Exception):
    """A command of the trial failed; the text names it, with the end of what it printed."""


def pythons(minors: Sequence[int] = range(11, 20)) -> Iterator[Path]:
    """One interpreter of each version that is found: on PATH, or in a folder of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in minors:
        on_path = shutil.which(f"python3.{minor}")
        of_pyenv = sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
        for found in [*([on_path] if on_path else []), *map(str, reversed(of_pyenv))]:
            # A shim of pyenv's may name a Python that is not chosen here.
            if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                yield Path(found)
                break


def try_on(python: Path, wheel: Path, version: str, sbom: Path | None = None) -> Trial:
    """Install the wheel for this Python and use it, in folders that are removed afterwards.

    What is then installed, without what the pages need, is described in the file `sbom`.
    """
    trial = Trial(_run([python, "-c", "import platform; print(platform.python_version())"]).strip())
    with tempfile.TemporaryDirectory(prefix="wherry-trial-") as folder:
        try:
            _install(trial, python, wheel, version, Path(folder))
            if sbom:
                write_sbom(_python_of(Path(folder)), wheel, version, sbom)
            _run_pages(trial, Path(folder))
        except (Failed, SbomFailed) as failed:
            trial.failed = str(failed)
    return trial


def _python_of(folder: Path) -> Path:
    return folder / "environment" / "bin" / "python"


def _install(trial: Trial, python: Path, wheel: Path, version: str, folder: Path) -> None:
    started = time.perf_counter()
    own = _python_of(folder)
    downloaded = folder / "downloaded"
    # Without a pip of its own: this one fills it, as the image of deploy/ is filled.
    _run([python, "-m", "venv", "--without-pip", folder / "environment"])
    _pip(own, "download", "--no-cache-dir", "--dest", downloaded, wheel)
    _pip(own, "install", "--no-index", "--find-links", downloaded, "wherry")
    (folder / "app.py").write_text(APP)
    with _serving(own, folder) as url:
        answer = _run([own, "-m", "wherry", "call", "--url", url, "shout", "good"], folder)
    trial.first_answer_s = time.perf_counter() - started
    if answer.strip() != "GOOD!":
        raise Failed(f"the first answer is {answer!r}")
    trial.download_mb = _megabytes(downloaded)
    trial.installed_mb = _megabytes(folder / "environment")
    if not (seen := _run([own, "-c", IMPORTS], folder)).startswith(f"{version} {folder}"):
        raise Failed(f"imports not this wheel of {version}, but {seen}")
    trial.import_cpu_s = _cpu(own, "import wherry", folder)
    trial.model_cpu_s = _cpu(own, "import wherry; wherry.model", folder)


def _run_pages(trial: Trial, folder: Path) -> None:
    own = _python_of(folder)
    _pip(own, "install", "--dry-run", "--only-binary", ":all:", f"wherry[{EXTRAS}]")
    if not shutil.which("curl"):
        trial.pages = "no curl"
        return
    _pip(own, "install", *PAGES_NEED)
    runner = ROOT / "tests" / "examples" / "pages.py"
    for page in PAGES:
        _run([own, "-P", runner, ROOT / page], folder)
    trial.pages = "run"


@contextmanager
def _serving(python: Path, folder: Path) -> Iterator[str]:
    """The URL of a server that serves the folder's app.py, once it is ready."""
    read_fd, write_fd = os.pipe()
    ready = ("--port", "0", "--ready-fd", str(write_fd))
    command = (str(python), "-m", "wherry", "serve", "app.py", *ready)
    with (folder / "log").open("w+") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=_environment(), pass_fds=[write_fd], stderr=log
        )
        os.close(write_fd)
        try:
            with os.fdopen(read_fd) as pipe:
                url = pipe.readline().strip()
            if not url:
                raise Failed(f"wherry serve: {(folder / 'log').read_text()}")
            yield url
        finally:
            server.terminate()
            server.wait(30)


def _pip(python: Path, *arguments: str | Path) -> None:
    quiet = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-input")
    _run([sys.executable, "-m", "pip", "--python", python, *quiet, *arguments])


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        shown = " ".join(map(str, command))
        raise Failed(f"{shown}\n{done.stdout[-3000:]}")
    return done.stdout


def _cpu(python: Path, code: str, folder: Path) -> float:
    """The CPU seconds that a process with this code takes, of five the least."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run([python, "-c", code], folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def _environment() -> dict[str, str]:
    """Without what would lead to another wherry than the installed one, or to other settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WHERRY_", "PYTHON", "VIRTUAL_ENV"))
    }


def _megabytes(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6
