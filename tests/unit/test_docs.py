"""The pages in docs/ speak of files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_file_in_the_reading_order_exists() -> None:
    rows = re.findall(
        r"^\| \d+ \| (.*?) \|", (ROOT / "docs/explanation/architecture.md").read_text(), re.M
    )
    assert len(rows) >= 10
    for row in rows:
        first, *others = re.findall(r"`([^`]+\.py)`", row)
        folder = (ROOT / "wherry" / first).parent
        for path in (ROOT / "wherry" / first, *(folder / other for other in others)):
            assert path.exists(), f"architecture.md names {path.relative_to(ROOT)}"


def test_every_module_asks_its_question_in_its_docstring() -> None:
    """The tree is read by these questions; `__main__` and re-exports have none."""
    silent = [
        str(path.relative_to(ROOT))
        for path in ROOT.glob("wherry/**/*.py")
        if path.name not in ("__init__.py", "__main__.py")
        and not re.match(r'"""[^"]*\?', path.read_text())
    ]
    assert silent == []
