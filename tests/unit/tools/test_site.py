"""tools.site: every page is in the site once, is reached, and its links lead where they led."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tools.site.sources import (
    COPIES,
    keywords,
    links,
    moved,
    navigation,
    places,
    resolved,
    sections,
    write,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's own sources, as Sphinx reads them."""
    folder = tmp_path_factory.mktemp("site")
    write(ROOT, folder)
    return folder


def entries(page: Path) -> Iterator[str]:
    """What the tables of contents of a page name."""
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.M):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                yield line.removeprefix("/") + ".md"


def test_every_page_is_reached_from_the_navigation_once(site: Path) -> None:
    groups = {group.place for group in navigation(ROOT) if group.title}
    reached = ["index.md", *entries(site / "index.md")]
    reached += [place for group in groups for place in entries(site / group)]
    assert sorted(reached) == sorted([*places(ROOT).values(), *groups])


def test_how_tos_are_in_seven_groups_that_open() -> None:
    titles = [group.title for group in navigation(ROOT) if group.caption == "How to"]
    assert len(titles) == 7
    assert all(titles)


def test_what_only_those_need_who_change_wherry_is_no_page_and_can_be_read(site: Path) -> None:
    groups = {place.partition("/")[0] for place in places(ROOT).values() if "/" in place}
    assert groups == {"tutorial", "how-to", "reference", "explanation", "examples"}
    assert [*site.glob("internals/*.md"), *site.glob("decisions/*")] == []
    assert (site / COPIES / "docs/internals/gpu.md.txt").is_file()


def test_every_page_has_a_group_and_a_place_in_it() -> None:
    """Its folder gives the group, `docs/README.md` the place."""
    named = {
        resolved("docs/README.md", link)
        for link in links((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    }
    missing = [
        page
        for page in places(ROOT)
        if page.startswith("docs/") and page.count("/") > 1
        if page not in named
    ]
    assert missing == [], "add a row to docs/README.md: where it stands there, it is in the site"


def test_each_word_of_the_table_leads_to_one_heading() -> None:
    found = keywords(ROOT)
    words = [word.lower() for some in found.values() for word in some]
    assert len(words) > 100
    assert sorted(words) == sorted({*words})
    known = {(section.place, section.anchor): section for section in sections(ROOT)}
    rotate = known["how-to/api-keys.md", "rotate-a-key"]
    assert rotate.keywords == ["rotate keys", "change a key"]
    assert rotate.heading == "Rotate a key"


@pytest.mark.parametrize("name", ["other-servers", "model-servers"])
def test_each_other_server_is_found_by_moving_from_it(name: str) -> None:
    page = f"docs/how-to/coming-from-{name}.md"
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.M)
    moves = [words for (source, _), words in keywords(ROOT).items() if source == page]
    assert len(moves) == len(headings)
    for words in moves:
        assert words[1:3] == [f"move from {words[0]}", f"migrate from {words[0]}"]


def test_sections_are_plain_text_and_a_word_without_its_heading_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    listed = tmp_path / "docs/README.md"
    (tmp_path / "README.md").write_text(
        "<!-- by hand -->\n# A `title`\n\nSee [it](a.md).\n\n## Rotate a `key`?\n\n"
        "| a | b |\n|---|---|\n| c | d |\n\n```sh\n# not a heading\n```\n"
    )
    listed.write_text("# L\n\n## By word\n\n| rotate | [k](../README.md#rotate-a-key) |\n")
    first, second, *_ = sections(tmp_path)
    assert first == ("index.md", "", "A title", "A title", (), "See it.")
    assert second[1:5] == ("rotate-a-key", "A title", "Rotate a key?", ["rotate"])
    assert second.text == "a b c d # not a heading"
    listed.write_text("# L\n\n## By word\n\n| rotate | [k](../README.md#gone) |\n")
    with pytest.raises(LookupError, match="gone"):
        list(sections(tmp_path))


def test_every_link_of_the_site_leads_to_a_file_of_it(site: Path) -> None:
    lost = [
        (str(page.relative_to(site)), link)
        for page in site.glob("**/*.md")
        for link in links(page.read_text(encoding="utf-8"))
        if not (page.parent / link).is_file()
    ]
    assert lost == []


def test_every_page_has_a_title(site: Path) -> None:
    untitled = [
        str(page.relative_to(site))
        for page in site.glob("**/*.md")
        if not re.match(r"# \S|<!--.*?-->\s*# \S", page.read_text(), re.DOTALL)
    ]
    assert untitled == []


def test_no_page_leads_to_another_site_for_what_the_browser_loads(site: Path) -> None:
    """An image or a script from elsewhere would need the network."""
    loads = re.compile(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b")
    shown = [
        str(page.relative_to(site))
        for page in site.glob("**/*.md")
        if loads.search(re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.S | re.M))
    ]
    assert shown == []


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[it](docs/how-to/llm.md)", "[it](how-to/llm.md)"),
        ("[it](docs/how-to/llm.md#keys)", "[it](how-to/llm.md#keys)"),
        ("![a [b] c](docs/a.svg)", "![a [b] c](a.svg)"),
        ("[![a](docs/a.svg)](docs/how-to/llm.md)", "[![a](a.svg)](how-to/llm.md)"),
        ("[![a](docs/a.svg)](NOTICE)", "[![a](a.svg)](NOTICE)"),
        ("[`test_x`](tests/unit/test_x.py)", "[`test_x`](repository/tests/unit/test_x.py.txt)"),
        ("[the `decisions`](docs/decisions)", "the `decisions`"),
        ("[it](docs/internals/gpu.md#a)", "[it](repository/docs/internals/gpu.md.txt)"),
        ("[an example](examples/llm)", "[an example](examples/llm.md)"),
        ("[below](#below)", "[below](#below)"),
        ("[elsewhere](https://example.org/a.md)", "[elsewhere](https://example.org/a.md)"),
        ("```py\na[0](docs/a.svg)\n```\n", "```py\na[0](docs/a.svg)\n```\n"),
    ],
)
def test_a_link_leads_where_it_led(link: str, becomes: str) -> None:
    to = {
        "README.md": "index.md",
        "docs/how-to/llm.md": "how-to/llm.md",
        "docs/a.svg": "a.svg",
        "tests/unit/test_x.py": f"{COPIES}/tests/unit/test_x.py.txt",
        "docs/decisions": "",
        "docs/internals/gpu.md": f"{COPIES}/docs/internals/gpu.md.txt",
        "examples/llm": "examples/llm.md",
    }
    assert moved(f"See\n{link}", "README.md", to) == f"See\n{becomes}"


def test_a_link_of_a_page_below_goes_up_as_far_as_it_must() -> None:
    to = {"docs/how-to/llm.md": "how-to/llm.md", "README.md": "index.md"}
    assert moved("[up](../../README.md)", "docs/how-to/llm.md", to) == "[up](../index.md)"


def test_the_order_of_the_navigation_is_that_of_the_list_of_pages() -> None:
    shown = navigation(ROOT)
    captions = list(dict.fromkeys(group.caption for group in shown))
    assert captions[:5] == ["Start", "Tutorials", "How to", "Reference", "Explanation"]
    assert shown[0].pages[0] == "how-to/install.md"
    assert shown[-1].caption == "Examples"
    assert all(PurePosixPath(page).suffix == ".md" for group in shown for page in group.pages)
