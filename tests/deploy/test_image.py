"""The image is built by its Dockerfile, is small, and serves as a user without rights.

No registry is needed: the base is a root file system made of Debian's packages.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import wherry

#: Debian's packages and pip's are fetched and unpacked: two minutes with the machine for itself.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/kubernetes/Dockerfile"

MB = 10**6

#: Of the machine, so that pip reaches in the build what it reaches here.
_LENT = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")

_NO_DOCUMENTS = ["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*"]

#: Makes, in a mount namespace of its own, what a container with a read-only root has, and becomes
#: the container's first process. Arguments: root, folder of models, user, folder to work in,
#: command.
_CONTAINER = """
set -e
root=$1 models=$2 user=$3 folder=$4
shift 4
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$models" "$root/models"
mount -o remount,bind,ro "$root/models"
exec /usr/sbin/chroot --userspec="$user" "$root" /usr/bin/env --chdir="$folder" "$@"
"""

_MODEL = """
import os
import wherry

@wherry.model
def who(path: str) -> str:
    try:
        open(path, "w").close()
    except OSError as error:
        return f"{os.getuid()} {error.strerror}"
    return f"{os.getuid()} wrote"
"""


class Image(NamedTuple):
    root: Path
    config: dict[str, Any]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    if done.returncode and re.search("resolving|Could not connect|Unable to connect", done.stderr):
        pytest.skip(f"{command[0]} reaches no mirror of Debian")
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid():
        pytest.skip("needs root, to make a root file system")
    for tool in ("mmdebstrap", "buildah", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    folder = tmp_path_factory.mktemp("image")
    buildah = ["buildah", "--root", f"{folder}/store", "--runroot", f"{folder}/run"]
    try:
        base = _run(*buildah, "from", "scratch")
        _make_base(_run(*buildah, "mount", base))
        _run(*buildah, "commit", "--rm", base, "localhost/base")
        lent = [f"--volume={path}:{path}:ro" for path in _LENT if Path(path).exists()]
        _run(
            *buildah, "build", "--isolation", "chroot", *lent, "--build-arg", "BASE=localhost/base",
            "--file", str(DOCKERFILE), "--tag", "localhost/wherry", str(ROOT),
        )  # fmt: skip
        made = _run(*buildah, "from", "localhost/wherry")
        described = json.loads(_run(*buildah, "inspect", made))
        yield Image(Path(_run(*buildah, "mount", made)), described["OCIv1"]["config"])
    finally:
        _run(*buildah, "umount", "--all")
        shutil.rmtree(folder)


def _make_base(root: str) -> None:
    """Fill the folder with what a slim image with Python has: the essential packages of Debian,
    without their documents."""
    _run(
        "mmdebstrap", "--quiet", "--variant=minbase", "--format=directory",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        "--include=usr-is-merged,python3-venv,ca-certificates", "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _NO_DOCUMENTS),
        "bookworm", root,
    )  # fmt: skip


def test_the_version_of_the_image_is_that_of_the_package() -> None:
    assert re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE.read_text(), re.M) == [wherry.__version__]


def test_every_file_that_is_copied_into_the_image_is_sent_to_its_build() -> None:
    ignored, *sent = (ROOT / ".dockerignore").read_text().split()
    assert ignored == "*"
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.M)
    assert {f"!{name}" for names in copied for name in names.split()} == set(sent[:-1])


@pytest.mark.full
def test_the_image_is_smaller_than_200_megabytes(image: Image) -> None:
    files = [path for path in image.root.rglob("*") if not path.is_symlink() and path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200 * MB


@pytest.mark.full
def test_nothing_in_the_image_installs_or_builds_programs(image: Image) -> None:
    tools = {"pip", "pip3", "apt", "apt-get", "gcc", "cc", "ld", "as", "strip", "make", "perl"}
    folders = ["opt/wherry/bin", "usr/local/bin", "usr/bin", "usr/sbin"]
    found = {path.name for folder in folders for path in (image.root / folder).glob("*")}
    assert found & tools == set()
    assert "wherry" in found
    packages = {path.name for path in image.root.glob("opt/wherry/lib/python3*/site-packages/*")}
    assert packages & {"pip", "setuptools", "wheel", "hatchling"} == set()


@pytest.mark.full
def test_the_image_says_as_whom_and_how_it_runs(image: Image) -> None:
    user, group = image.config["User"].split(":")
    # Numbers: of a name Kubernetes cannot tell that it is not root's.
    assert int(user) >= 1000
    assert int(group) >= 1000
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Entrypoint"] == ["/opt/wherry/bin/wherry"]  # no shell between
    licenses = image.config["Labels"]["org.opencontainers.image.licenses"]
    assert licenses == "Apache-2.0 AND BSD-3-Clause"


@pytest.mark.full
def test_the_image_serves_without_rights_on_a_root_that_is_read_only(
    image: Image, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(_MODEL)
    tmp_path.chmod(0o755)
    with _Container(image, tmp_path, "serve", "app.py") as container:
        assert container.ask("health/ready") == ""
        user = image.config["User"].partition(":")[0]
        wrote = [container.generate("who", path=path) for path in ("/new", "/models/x", "/tmp/new")]
        assert wrote == [
            f"{user} Read-only file system",
            f"{user} Read-only file system",
            f"{user} wrote",
        ]
    assert container.exit_code == 0, container.log


class _Container:
    """The image's program, as the first process of a PID namespace, on a free port."""

    def __init__(self, image: Image, models: Path, *arguments: str) -> None:
        self.log = ""
        config = image.config
        ready, told = os.pipe()
        self._process = subprocess.Popen(
            [
                "unshare", "--mount", "--pid", "--fork", "--kill-child",
                "sh", "-c", _CONTAINER, "container",
                str(image.root), str(models), config["User"], config["WorkingDir"],
                *config["Entrypoint"], *arguments,
                "--host", "127.0.0.1", "--port", "0", "--ready-fd", str(told),
            ],
            env=dict(variable.split("=", 1) for variable in config["Env"]),
            pass_fds=[told],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        os.close(told)
        self._ready = ready
        self._stop = signal.Signals[config["StopSignal"]]
        self.exit_code = -1

    def __enter__(self) -> "_Container":
        with open(self._ready) as ready:
            self._url = ready.readline().strip()  # its parent keeps the pipe open
        if not self._url:
            self.__exit__()
            pytest.fail(f"it does not become ready:\n{self.log}")
        return self

    def __exit__(self, *_: object) -> None:
        """Tell the first process to stop, as a container's engine does."""
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for child in children:
            os.kill(int(child), self._stop)
        self.log, _stderr = self._process.communicate(timeout=60)
        self.exit_code = self._process.returncode

    def ask(self, path: str, body: bytes | None = None) -> str:
        with urllib.request.urlopen(f"{self._url}/v2/{path}", body, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def generate(self, model: str, **inputs: str) -> str:
        answer = json.loads(self.ask(f"models/{model}/generate", json.dumps(inputs).encode()))
        output: str = answer["output"]
        return output
