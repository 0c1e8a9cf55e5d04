"""What is installed with wherry, as a bill of materials that other programs read? (CycloneDX)"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec

from tools.dist.build import ROOT


class SbomFailed(Exception):
    """cyclonedx-py could not; the text is what it printed."""


def write_sbom(environment: Path, wheel: Path, version: str, into: Path) -> None:
    """Describe what this environment's Python finds; wherry itself is this wheel, by its hash.

    It is the same for the same packages: the time in it is that of SOURCE_DATE_EPOCH, or none.
    """
    command = (
        sys.executable, "-m", "cyclonedx_py", "environment", str(environment), "--pyproject",
        str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-file", str(into),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SbomFailed(done.stderr)
    described = msgspec.json.decode(into.read_bytes())
    described["metadata"]["component"] |= {
        "version": version,  # which pyproject.toml leaves to wherry/__init__.py
        "purl": f"pkg:pypi/wherry@{version}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    into.write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
