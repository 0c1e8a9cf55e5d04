"""Which pages has the site, in which order, and where does each of their links lead?

The pages are the Markdown files of the repository, which a forge shows where they lie. Here each
gets its place in the site. `docs/README.md` is the navigation: a `##` is a caption, a `###` below
it a group that opens, and their tables list the pages. A link to a page leads to its place, a link
to another file of the repository to a copy of it. `docs/internals` and `docs/decisions` are for
those who change wherry: they are such other files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

LIST = "docs/README.md"
#: Folders of docs/ with pages of the site.
FOLDERS = ("tutorial", "how-to", "reference", "explanation")
#: Pages outside of docs/, and their places.
OTHERS = {
    "README.md": "index.md",
    LIST: "pages.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
#: Where copies of other files of the repository are.
COPIES = "repository"
#: What begins the part of `LIST` that is no navigation.
BY_WORD = "\n## By word\n"

_SHOWN = (".png", ".svg", ".webp")
_LINK = re.compile(
    r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<to>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


class Group(NamedTuple):
    """Pages in the navigation, below a page of their own if it has a title."""

    caption: str
    title: str
    text: str
    pages: Sequence[str]

    @property
    def place(self) -> str:
        return f"{anchor_of(self.title)}.md"


def places(root: Path) -> dict[str, str]:
    """The site's pages: path in the repository -> place in the site."""
    found = {source: place for source, place in OTHERS.items() if (root / source).exists()}
    for page in sorted(root.glob("examples/*/README.md")):
        found[page.relative_to(root).as_posix()] = f"examples/{page.parent.name}.md"
    for page in sorted(page for folder in FOLDERS for page in root.glob(f"docs/{folder}/*.md")):
        found[page.relative_to(root).as_posix()] = page.relative_to(root / "docs").as_posix()
    return found


def navigation(root: Path) -> list[Group]:
    """The groups of `LIST`, and at the end one with all pages that it does not name."""
    pages = places(root)
    text = (root / LIST).read_text(encoding="utf-8").partition(BY_WORD)[0]
    groups, seen = [], {"index.md", "pages.md"}
    caption = ""
    for heading, title, content in re.findall(
        r"^(##+) (.+)\n((?:(?!^##).*\n)*)", text, re.MULTILINE
    ):
        caption = title if heading == "##" else caption
        named = [pages[path] for link in links(content) if (path := resolved(LIST, link)) in pages]
        own = [place for place in dict.fromkeys(named) if place not in seen]
        seen.update(own)
        if own:
            groups.append(Group(caption, "" if heading == "##" else title, content, own))
    rest = [place for place in pages.values() if place not in seen]
    if rest:
        groups.append(Group("Examples", "Examples that run", "", rest))
    return groups


def links(text: str) -> Iterator[str]:
    """The relative links of a page, without their anchors; those in its code are none."""
    for part in _outside_code(text):
        for match in _LINK.finditer(part):
            yield from links(match["before"][1:])  # an image may be what a link shows
            yield match["to"]


def moved(text: str, source: str, to: Mapping[str, str]) -> str:
    """The page `source` with its links as they are at its place.

    `to` says where each path of the repository is in the site; a link elsewhere stays, and one
    to a folder that has no page becomes its text.
    """
    folder = PurePosixPath(to[source]).parent

    def at_its_place(match: re.Match[str]) -> str:
        target = to.get(resolved(source, match["to"]))
        shown = _LINK.sub(at_its_place, match["before"][1:])
        if target is None:
            return f"{match[0][0]}{shown}{match[0][len(match['before']) :]}"
        if not target:
            return shown[:-2]
        anchor = (match["anchor"] or "") if target.endswith(".md") else ""
        return f"{match[0][0]}{shown}{os.path.relpath(target, folder)}{anchor})"

    fences = [*_FENCE.findall(text), ""]
    parts = (_LINK.sub(at_its_place, part) for part in _outside_code(text))
    return "".join(part + fence for part, fence in zip(parts, fences, strict=True))


def resolved(source: str, link: str) -> str:
    """The path in the repository to which this link of the page `source` leads."""
    return os.path.normpath(PurePosixPath(source).parent / link)


def keywords(root: Path) -> dict[tuple[str, str], list[str]]:
    """(page, anchor) -> the words that somebody looks for, by the table "By word" of `LIST`.

    The anchor of a page itself is empty.
    """
    text = (root / LIST).read_text(encoding="utf-8").partition(BY_WORD)[2]
    found: dict[tuple[str, str], list[str]] = {}
    for words, link in re.findall(r"^\| (.+) \| \[.+\]\((.+)\) \|$", text, re.MULTILINE):
        page, _, anchor = link.partition("#")
        found.setdefault((resolved(LIST, page), anchor), []).extend(words.split(", "))
    return found


class Section(NamedTuple):
    """What the search knows of a heading; `static/search.js` reads it as a list."""

    place: str
    anchor: str
    title: str
    heading: str
    keywords: Sequence[str]
    text: str


def sections(root: Path) -> Iterator[Section]:
    """The sections of all pages, for the search."""
    known = keywords(root)
    for source, place in places(root).items():
        title, anchor, heading = "", "", ""
        for level, named, content in _by_heading((root / source).read_text(encoding="utf-8")):
            heading = _plain(named)
            title = title or heading
            anchor = "" if level == "#" else anchor_of(named)
            words = known.pop((source, anchor), ())
            yield Section(place, anchor, title, heading, words, " ".join(_plain(content).split()))
    if known:
        raise LookupError(f"{LIST}, By word: not a page or heading: {sorted(known)}")


def _by_heading(text: str) -> Iterator[tuple[str, str, str]]:
    """(its marks, the heading, what is below it) for each heading up to the fourth level."""
    level, heading, lines, in_code = "", "", list[str](), False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        if not in_code and (found := re.match(r"(#{1,4}) (.+)", line)):
            if level:
                yield level, heading, "\n".join(lines)
            level, heading, lines = found[1], found[2], []
        else:
            lines.append(line)
    yield level, heading, "\n".join(lines)


def _plain(text: str) -> str:
    """Without the marks of links, code and tables."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*$|^\|[-|]+\|$", "", text, flags=re.MULTILINE)
    return re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text).replace("`", "").replace("|", " ")


def anchor_of(heading: str) -> str:
    """A heading's anchor, as a forge makes it."""
    return re.sub(r"[^\w\- ]", "", _plain(heading).lower()).strip().replace(" ", "-")


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
    for path, place in {**pages, **copies}.items():
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        if path in pages:
            text = (root / path).read_text(encoding="utf-8")
            (into / place).write_text(moved(text, path, to), encoding="utf-8")
        else:
            shutil.copyfile(root / path, into / place)
    _write_navigation(navigation(root), into, to)


def write_search(root: Path, into: Path) -> None:
    """Write the script with what the search knows."""
    into.write_text(f"const SECTIONS = {json.dumps([*sections(root)])};\n", encoding="utf-8")


def _write_navigation(groups: Sequence[Group], into: Path, to: Mapping[str, str]) -> None:
    captions: dict[str, list[str]] = {"": ["pages.md"]}
    for group in groups:
        entries = captions.setdefault(group.caption, [])
        if not group.title:
            entries += group.pages
            continue
        entries.append(group.place)
        # A table in place of Sphinx's list, where there is one: it says what each page is for.
        hidden = bool(group.text.strip())
        text = f"# {group.title}\n{moved(group.text, LIST, to)}{_toctree('', group.pages, hidden)}"
        (into / group.place).write_text(text, encoding="utf-8")
    with (into / "index.md").open("a", encoding="utf-8") as index:
        index.writelines(_toctree(caption, places) for caption, places in captions.items())


def _toctree(caption: str, places: Sequence[str], hidden: bool = True) -> str:
    options = (":hidden:\n" if hidden else "") + (f":caption: {caption}\n" if caption else "")
    entries = "\n".join(place.removesuffix(".md") for place in places)
    return f"\n```{{toctree}}\n{options}:titlesonly:\n\n{entries}\n```\n"


def _outside_code(text: str) -> list[str]:
    return _FENCE.split(text)
