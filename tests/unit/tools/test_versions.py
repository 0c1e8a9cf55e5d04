"""tools.site.versions: each version has its pages, and old ones lead to the newest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.site.versions import publish


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


def site(folder: Path, *pages: str) -> Path:
    """A built site with these pages, in a folder that is new for each call."""
    made = folder / f"site-{len(list(folder.iterdir()))}"
    for page in ("index.html", *pages):
        (made / page).parent.mkdir(parents=True, exist_ok=True)
        (made / page).write_text(f'<html><body class="x"><h1>{page}</h1></body></html>')
    return made


def test_the_first_version_is_the_latest_and_the_root_leads_there(
    tmp_path: Path, published: Path
) -> None:
    publish(site(tmp_path, "how-to/llm.html"), published, "0.1.0")
    assert json.loads((published / "versions.json").read_text()) == ["0.1"]
    page = (published / "0.1/how-to/llm.html").read_text()
    assert page == '<html><body class="x"><h1>how-to/llm.html</h1></body></html>'
    assert (published / "latest/how-to/llm.html").read_text() == page
    assert "url=latest/index.html" in (published / "index.html").read_text()


def test_old_pages_lead_to_the_same_page_of_the_newest_or_to_its_beginning(
    tmp_path: Path, published: Path
) -> None:
    publish(site(tmp_path, "a.html", "how-to/llm.html"), published, "0.9.3")
    publish(site(tmp_path, "how-to/llm.html"), published, "0.10.0")
    assert json.loads((published / "versions.json").read_text()) == ["0.10", "0.9"]
    assert 'href="../../latest/how-to/llm.html"' in (published / "0.9/how-to/llm.html").read_text()
    assert 'href="../latest/index.html"' in (published / "0.9/a.html").read_text()
    assert "This is wherry 0.9." in (published / "0.9/index.html").read_text()
    assert "This is" not in (published / "0.10/index.html").read_text()
    assert "This is" not in (published / "latest/index.html").read_text()


def test_a_patch_replaces_the_pages_of_its_minor_version_and_is_said_once(
    tmp_path: Path, published: Path
) -> None:
    publish(site(tmp_path, "gone.html"), published, "0.1.0")
    publish(site(tmp_path), published, "0.2.0")
    publish(site(tmp_path, "new.html"), published, "0.1.1")
    publish(site(tmp_path), published, "0.3.0")
    assert not (published / "0.1/gone.html").exists()
    old = (published / "0.1/new.html").read_text()
    assert old.count("<!-- old -->") == 1
    assert "The newest is 0.3." in old
    assert "The newest is 0.3." in (published / "0.2/index.html").read_text()
