"""changes/ and CHANGELOG.md: a release has one page, and the next one can be made."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import ROOT

#: Of a page that is read at once.
LINES = 60


def releases() -> list[str]:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.split(r"^## ", text, flags=re.MULTILINE)[1:]


def test_a_release_is_a_page() -> None:
    assert releases()[-1].startswith("0.1.0")
    assert all(len(release.splitlines()) <= LINES for release in releases())


@pytest.mark.slow
def test_fragments_become_the_next_page_above_the_last(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    for name in ("CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    changes = tmp_path / "changes"
    changes.mkdir()
    for name in ("README.md", "template.md"):
        shutil.copy(ROOT / "changes" / name, changes)
    (changes / "wings.added.md").write_text("- It has wings.\n")
    (changes / "tail.fixed.md").write_text("Its tail wags\nagain.\n")
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", "--keep"]
    subprocess.run([*command, "--date", "2030-01-02"], cwd=tmp_path, check=True)
    page = (tmp_path / "CHANGELOG.md").read_text()
    assert (
        "\n## 9.9.9 (2030-01-02)\n\n### Added\n\n- It has wings.\n\n### Fixed\n\n- Its tail wags\n"
        "  again.\n\n## 0.1.0"
    ) in re.sub(r"\n{3,}", "\n\n", page)
