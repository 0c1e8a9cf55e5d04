"""What a release needs: its notes, whose what is, a bill of materials, a workflow that signs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tools.dist.build import ROOT
from tools.dist.licences import UNKNOWN, licence_of, needed, of_others
from tools.dist.notes import page_of, unready
from tools.dist.sbom import write_sbom

WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/README.md").touch()
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n## 0.2.0 (2026-12-01)\n\n- new\n\n## 0.1.0 (2026-11-24)\n\n- old\n"
    )
    return tmp_path


def test_a_release_whose_changes_are_written_down_is_ready(tree: Path) -> None:
    assert list(unready(tree, "v0.2.0", "0.2.0")) == []
    assert page_of(tree, "0.2.0") == "- new"
    assert page_of(tree, "0.1.0") == "- old"
    assert page_of(tree, "0.3.0") == ""


def test_a_release_is_not_ready_without_its_page_or_with_changes_left(tree: Path) -> None:
    (tree / "changes/bench.added.md").touch()
    said = list(unready(tree, "v0.3.0", "0.3.1"))
    assert [one.partition(":")[0] for one in said] == [
        "the tag is v0.3.0, and wherry/__init__.py says 0.3.1",
        "CHANGELOG.md has no page of 0.3.1 with its date",
        "changes/ still has bench.added.md",
    ]


def test_what_is_of_others_is_there_and_its_licence_is_shipped() -> None:
    others = list(of_others())
    assert {one.path for one in others} >= {"wherry/triton/repository/model_config.proto"}
    shipped = {path.stem for path in (ROOT / "LICENSES").iterdir()}
    for one in others:
        assert (ROOT / one.path).is_file(), one.path
        assert set(re.split(r" AND | OR ", one.licence)) <= shipped


def test_every_definition_of_a_protocol_says_whose_it_is() -> None:
    """Messages and their numbers are somebody's, though we wrote the file."""
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("wherry/**/*.proto")} <= {
        one.path for one in of_others()
    }


def test_what_the_wheel_ships_of_others_is_in_its_licence() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (said,) = re.findall(r'^license = "([^"]+)"', text, re.M)
    (files,) = re.findall(r"^license-files = \[(.*)\]", text, re.M)
    for one in of_others():
        if one.path.startswith("wherry/"):
            assert set(one.licence.split(" AND ")) <= set(said.split(" AND "))
    for name in set(said.split(" AND ")) - {"Apache-2.0"}:
        assert f'"LICENSES/{name}.txt"' in files


def test_what_wherry_needs_is_followed_through_what_that_needs() -> None:
    found = {one.package: one for one in needed()}
    assert {"numpy", "rich", "pygments"} <= set(found)  # the last one is rich's
    assert "wherry" not in found
    assert "pytest" not in found
    assert all(one.licence != UNKNOWN for one in found.values()), found
    assert "pytest" in {one.package for one in needed(["test"])}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: x", "MIT OR Apache-2.0"),
        ("Classifier: License :: OSI Approved :: MIT License\nLicense: x", "MIT License"),
        ("Classifier: License :: OSI Approved\nLicense: Apache 2.0", "Apache 2.0"),
        ("Classifier: Typing :: Typed", UNKNOWN),
    ],
)
def test_a_licence_is_read_from_where_a_package_says_it(
    tmp_path: Path, fields: str, said: str
) -> None:
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{fields}\n")
    assert licence_of(metadata.PathDistribution(folder).metadata) == said


@pytest.mark.slow
def test_the_bill_of_materials_names_the_wheel_by_its_hash(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    wheel = tmp_path / "wherry.whl"
    wheel.write_bytes(b"a wheel")
    for file in ("one.json", "two.json"):
        write_sbom(environment / "bin/python", wheel, "0.1.0", tmp_path / file)
    described = json.loads((tmp_path / "one.json").read_text())
    root = described["metadata"]["component"]
    assert (described["bomFormat"], root["name"], root["version"]) == (
        "CycloneDX",
        "wherry",
        "0.1.0",
    )
    assert root["hashes"][0]["content"] == hashlib.sha256(b"a wheel").hexdigest()
    assert described.get("components", []) == []
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_every_action_of_the_workflow_is_pinned_by_hash() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert len(used) >= 8
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_the_workflow_publishes_without_a_password_and_signs() -> None:
    assert "secrets." not in WORKFLOW
    assert re.search(r"^permissions: \{\}$", WORKFLOW, re.M)
    assert WORKFLOW.count("id-token: write") == 2  # to sign, and to publish
    for step in ("attest-build-provenance@", "attest-sbom@", "attestations: true"):
        assert step in WORKFLOW


def test_the_workflow_tries_each_python_that_the_package_names() -> None:
    (tried,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    named = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert re.findall(r"3\.\d+", tried) == named


def test_what_makes_a_release_is_pinned_by_hash() -> None:
    text = (ROOT / "tools/dist/requirements.txt").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==\S+(?: ;.*)? \\$", text, re.M))
    assert text.count("--hash=sha256:") >= len(pinned)
    (release,) = re.findall(r"^release = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(re.findall(r'"([a-z0-9-]+)', release)) <= pinned


def test_the_page_of_security_says_how_to_report_and_what_is_supported() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.M)[:2] == ["Reporting", "What is supported"]
    assert len(re.findall(r"^\d\. \*\*", page, re.M)) == 5
