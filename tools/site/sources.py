"""Which pages has the site, in which order, and where does each of their links lead?

The pages are the Markdown files of the repository, which a forge shows where they lie. Here each
gets its place in the site. The folder of a page is its group, and `docs/README.md` has the order
within it: nothing is listed a second time. A link to a page leads to its place, a link to another
file of the repository to a copy of it. `docs/internals` and `docs/decisions` are for those who
change wherry: they are such other files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

#: Folder of docs/, and what the navigation calls it.
GROUPS = {
    "tutorial": "Tutorials",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
}
#: Pages outside of docs/, and their places.
OTHERS = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
#: Where copies of other files of the repository are.
COPIES = "repository"

_SHOWN = (".png", ".svg")
_LINK = re.compile(
    r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<to>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def places(root: Path) -> dict[str, str]:
    """The site's pages: path in the repository -> place in the site."""
    found = {source: place for source, place in OTHERS.items() if (root / source).exists()}
    for page in sorted(root.glob("examples/*/README.md")):
        found[page.relative_to(root).as_posix()] = f"examples/{page.parent.name}.md"
    for page in sorted(page for group in GROUPS for page in root.glob(f"docs/{group}/*.md")):
        found[page.relative_to(root).as_posix()] = page.relative_to(root / "docs").as_posix()
    return found


def navigation(root: Path) -> dict[str, list[str]]:
    """Caption -> the places below it, in the order in which `docs/README.md` names them.

    Pages that it does not name come last.
    """
    named = re.findall(r"\]\(([^)#]+\.md)\)", (root / "docs/README.md").read_text(encoding="utf-8"))
    rank = {place: number for number, place in reversed([*enumerate(named)])}
    groups: dict[str, list[str]] = {"Start": ["pages.md"], **{name: [] for name in GROUPS.values()}}
    groups["Examples"] = []
    groups["Project"] = []
    for source, place in places(root).items():
        if source in ("README.md", "docs/README.md"):
            continue
        folder = place.partition("/")[0] if "/" in place else ""
        caption = "Examples" if folder == "examples" else GROUPS.get(folder, "Project")
        groups[caption].append(place)
    return {
        caption: sorted(pages, key=lambda place: (rank.get(place, len(rank)), place))
        for caption, pages in groups.items()
    }


def links(text: str) -> Iterator[str]:
    """The relative links of a page, without their anchors; those in its code are none."""
    for part in _outside_code(text):
        yield from (match["to"] for match in _LINK.finditer(part))


def moved(text: str, source: str, to: Mapping[str, str]) -> str:
    """The page `source` with its links as they are at its place.

    `to` says where each path of the repository is in the site; a link elsewhere stays, and one
    to a folder that has no page becomes its text.
    """
    folder = PurePosixPath(to[source]).parent

    def at_its_place(match: re.Match[str]) -> str:
        target = to.get(resolved(source, match["to"]))
        if target is None:
            return match[0]
        if not target:
            return match["before"][1:-2]
        anchor = (match["anchor"] or "") if target.endswith(".md") else ""
        return f"{match['before']}{os.path.relpath(target, folder)}{anchor})"

    fences = [*_FENCE.findall(text), ""]
    parts = (_LINK.sub(at_its_place, part) for part in _outside_code(text))
    return "".join(part + fence for part, fence in zip(parts, fences, strict=True))


def resolved(source: str, link: str) -> str:
    """The path in the repository to which this link of the page `source` leads."""
    return os.path.normpath(PurePosixPath(source).parent / link)


def index_entries(root: Path) -> dict[str, list[tuple[str, list[str]]]]:
    """Page -> the anchors in it with the words that somebody looks for, by the table "By word" of
    `docs/README.md`. The anchor of a page itself is empty."""
    text = (root / "docs/README.md").read_text(encoding="utf-8").partition("\n## By word\n")[2]
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for words, link in re.findall(r"^\| (.+) \| \[.+\]\((.+)\) \|$", text, re.MULTILINE):
        page, _, anchor = link.partition("#")
        entry = (anchor, words.split(", "))
        found.setdefault(resolved("docs/README.md", page), []).append(entry)
    return found


def with_index(text: str, entries: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The page with entries of the index at its headings. LookupError if there is no such one.

    The search shows them first: of the text it knows only which pages have all words.
    """
    lines = text.splitlines(keepends=True)
    for anchor, words in entries:
        # "!": the search shows such entries before all that has the words somewhere.
        directive = f"\n```{{index}} {', '.join(f'! {word}' for word in words)}\n```\n\n"
        place = next(
            (
                number
                for number, line in enumerate(lines)
                if line.startswith("# " if not anchor else "##")
                and anchor in ("", _anchor(line.lstrip("#").strip()))
            ),
            None,
        )
        if place is None:
            raise LookupError(anchor)
        # Before the heading, so that the link leads to it; the title has nothing before it.
        lines.insert(place if anchor else place + 1, directive)
    return "".join(lines)


def _anchor(heading: str) -> str:
    """A heading's anchor, as a forge makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def write(root: Path, into: Path) -> None:
    """Write the site's sources, in Markdown, to the folder `into`; what was there goes."""
    shutil.rmtree(into, ignore_errors=True)
    pages = places(root)
    others = {
        path
        for source in pages
        for link in links((root / source).read_text(encoding="utf-8"))
        if (path := resolved(source, link)) not in pages
    }
    copies = {
        path: path.removeprefix("docs/") if path.endswith(_SHOWN) else f"{COPIES}/{path}.txt"
        for path in others
        if (root / path).is_file()
    }
    folders = {
        path: pages.get(f"{path}/README.md", "") for path in others if (root / path).is_dir()
    }
    to = {**pages, **copies, **folders}
    entries = index_entries(root)
    for path, place in {**pages, **copies}.items():
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        if path in pages:
            page = with_index((root / path).read_text(encoding="utf-8"), entries.get(path, ()))
            (into / place).write_text(moved(page, path, to), encoding="utf-8")
        else:
            shutil.copyfile(root / path, into / place)
    with (into / "index.md").open("a", encoding="utf-8") as index:
        index.writelines(_toctree(caption, shown) for caption, shown in navigation(root).items())


def _toctree(caption: str, shown: Sequence[str]) -> str:
    entries = "\n".join(place.removesuffix(".md") for place in shown)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _outside_code(text: str) -> list[str]:
    return _FENCE.split(text)
