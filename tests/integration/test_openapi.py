"""Is the OpenAPI document true? schemathesis, which knows nothing but the document, tries it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wherry
from tests.integration.openapi_models import ALL
from wherry.testing import running_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEY = "key-of-the-test-0123456789"

pytestmark = pytest.mark.full


def hold_true(url: str, tmp_path: Path, *options: str) -> None:
    """Run schemathesis against a server; AssertionError with what it has found."""
    command = [
        sys.executable, "-m", "schemathesis.cli",
        "--config-file", str(HERE / "schemathesis.toml"),
        "run", f"{url}/openapi.json",
        "--max-examples", "3",
        "--seed", "16",
        "--warnings", "off",
        # Events that have no end, and paths whose handlers have others, too.
        "--exclude-path-regex", "^/dashboard/events$|/versions/|^/(livez|readyz|healthz|health)$",
        "--no-color",
        *options,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.integration.schemathesis_hooks",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr


def traces(folder: Path) -> list[str]:
    """What makes each setting of traces valid: a level without a file is refused."""
    return [f"triton,file={folder / 'traces.json'}"]


def test_the_document_is_true_of_any_data(tmp_path: Path) -> None:
    with wherry.Server(
        *ALL, port=0, allow_shared_memory=True, trace_config=traces(tmp_path)
    ) as server:
        hold_true(server.url, tmp_path, "--phases", "examples,fuzzing")


def test_the_document_is_true_at_each_bound(tmp_path: Path) -> None:
    with wherry.Server(*ALL[:3], port=0, trace_config=traces(tmp_path)) as server:
        hold_true(server.url, tmp_path, "--phases", "coverage", "--exclude-path-regex", "{model}")


def test_the_document_is_true_with_keys_and_restrictions(tmp_path: Path) -> None:
    with wherry.Server(
        *ALL[:2],
        port=0,
        api_keys=[KEY],
        restricted_apis=["statistics:Admin-Key=secret"],
        trace_config=traces(tmp_path),
    ) as server:
        headers = ["-H", f"Authorization: Bearer {KEY}", "-H", "Admin-Key: secret"]
        hold_true(server.url, tmp_path, "--phases", "examples,fuzzing", *headers)


def test_the_document_is_true_behind_fronts(tmp_path: Path) -> None:
    models = str(HERE / "openapi_models.py")
    options = ("--fronts", "2", "--trace-config", *traces(tmp_path))
    with running_server(models, *options) as url:
        hold_true(url, tmp_path, "--phases", "examples,fuzzing")
