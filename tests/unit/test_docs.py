"""The pages in docs/ speak of files that exist, and name every setting, metric, error and route."""

import ast
import re
from pathlib import Path

import pytest

from tools.reference.__main__ import PAGES as PAGES_FROM_CODE
from wherry.core.observability.numbers import CUT_REASONS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]+))?\)", page.read_text()):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor and target.suffix != ".py":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            known = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
            assert anchor in known, f"{link}#{anchor}"


@pytest.mark.parametrize(
    "page",
    [
        "docs/explanation/promises.md", "docs/explanation/limits.md",
        "docs/explanation/security.md",
    ],
)  # fmt: skip
def test_every_promise_of_a_page_leads_to_a_test_that_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    promised = re.findall(r"\]\(([^)]+\.py)#(test_\w+)\)", text)
    assert len(promised) >= 5
    missing = [
        (name, path)
        for path, name in promised
        if not re.search(
            rf"^(async )?def {name}\(", ((ROOT / page).parent / path).read_text(), re.M
        )
    ]
    assert missing == []


def test_the_readme_is_read_in_three_minutes() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 700
    above_the_fold = text.splitlines()[:20]
    assert sum(line.startswith("![") for line in above_the_fold) == 1


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("docs/tutorial/*.md")), ids=lambda page: page.name
)
def test_a_tutorial_is_read_in_one_sitting(page: Path) -> None:
    assert len(page.read_text().split()) <= 900


@pytest.mark.parametrize("page", PAGES_FROM_CODE)
def test_a_page_from_the_code_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    assert written == PAGES_FROM_CODE[page](), "run: python -m tools.reference"


def test_every_page_is_in_the_list_of_pages() -> None:
    """The decisions are listed as a folder."""
    listed = set(re.findall(r"\]\(([^.)#][^)#]*\.md)\)", (ROOT / "docs/README.md").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/*/*.md")}
    assert listed == {page for page in pages if not page.startswith("decisions/")}, (
        "give the page a row of docs/README.md: where it stands there, it is on the site"
    )


OTHER_SERVERS = ("coming-from-other-servers.md", "coming-from-model-servers.md")
SECTIONS = [
    section
    for page in OTHER_SERVERS
    for section in re.split(r"^## ", (ROOT / "docs/how-to" / page).read_text(), flags=re.M)[1:]
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_each_other_server_has_code_counterparts_and_what_is_not_here(section: str) -> None:
    for code in re.findall(r"^```py\n(.*?)^```", section, re.DOTALL | re.M):
        ast.parse(code)
    assert re.search(r"^```(?:py|sh)$", section, re.M)
    assert re.search(r"^\| .+ \| here \|$", section, re.M)
    assert re.search(r"^Not (?:here|in wherry's own engine)\b", section, re.M)


def test_every_module_asks_its_question_in_its_docstring() -> None:
    """The tree is read by these questions; `__main__` and re-exports have none."""
    silent = [
        str(path.relative_to(ROOT))
        for path in ROOT.glob("wherry/**/*.py")
        if path.name not in ("__init__.py", "__main__.py")
        and not re.match(r'"""[^"]*\?', path.read_text())
    ]
    assert silent == []


def rows_of(page: str, header: str) -> list[list[str]]:
    """The cells of the tables with this header, without the marks of code around them."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / "docs/reference" / page).read_text().splitlines():
        if line == header or not line.startswith("|"):
            inside = line == header
        elif inside and not line.startswith("|---"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip().strip("`").replace("\\|", "|") for cell in cells])
    assert rows, f"{page} has no table {header}"
    return rows


def test_every_reason_for_which_a_batch_leaves_has_its_row_and_is_given_by_a_policy() -> None:
    rows = rows_of("metrics.md", "| reason | the batch left because |")
    assert {reason for reason, _ in rows} == set(CUT_REASONS)
    policies = "".join(path.read_text() for path in ROOT.glob("wherry/core/scheduler/*.py"))
    assert [reason for reason in CUT_REASONS if f'"{reason}"' not in policies] == []
