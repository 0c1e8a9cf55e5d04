"""Are a model's files those that its configuration names? Triton's repository agent `checksum`.

model_repository_agents { agents [ { name: "checksum"
  parameters { key: "MD5:1/model.onnx" value: "d726e132f91f16ebee703d96f6f73cb1" } } ] }
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Final

from wherry.triton.repository.problems import Path, Problem
from wherry.triton.repository.triton_config import TritonConfig

NAME: Final = "checksum"
#: Triton's agent knows the first.
ALGORITHMS: Final = ("md5", "sha1", "sha256", "sha384", "sha512")


def expected(config: TritonConfig) -> Iterator[tuple[Path, str, str, str]]:
    """Where each checksum stands, its algorithm, the file in the model's folder, and its value."""
    agents = config.model_repository_agents
    for index, agent in enumerate(agents.agents if agents is not None else ()):
        if agent.name == NAME:
            for key, value in agent.parameters.items():
                path = ("model_repository_agents", "agents", index, "parameters", key)
                algorithm, _, file = key.partition(":")
                yield path, algorithm, file, value


def mismatches(folder: str, config: TritonConfig) -> Iterator[Problem]:
    """What differs from the checksums. Reads each of the files that they name."""
    for path, algorithm, file, value in expected(config):
        try:
            with open(os.path.join(folder, file), "rb") as source:
                found = hashlib.file_digest(source, algorithm.lower()).hexdigest()
        except OSError as error:
            yield Problem(path, f"failed to open file {file!r}: {error.strerror}")
            continue
        if found != value.lower():
            yield Problem(
                path, f"Mismatched {algorithm} hash for file {file}, expect: {value}, got: {found}"
            )
