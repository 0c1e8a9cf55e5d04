"""tools.public_api: what is public stays, and what takes some of it away is named."""

from __future__ import annotations

from pathlib import Path

import griffe  # noqa: F401  # of an extra: without it this file is skipped
import pytest

from tools.public_api.__main__ import since_the_release
from tools.public_api.annotations import covers
from tools.public_api.compare import breaks, is_allowed, lost
from tools.public_api.promise import BETWEEN_PARTS
from tools.public_api.surface import stubs

PACKAGE = {
    "__init__.py": """
TYPE_CHECKING = False
if TYPE_CHECKING:
    from wherry.parts import Child, QueueFull, model
__all__ = ["Child", "QueueFull", "model"]
""",
    "parts.py": '''
from typing import Literal

class Base:
    """Not public by itself."""

    def start(self, *, timeout: float = 1.0) -> None: ...
    def taken(self, state: list[_State]) -> None: ...
    def _private(self) -> None: ...

class Child(Base):
    size: int

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = object()

    async def ask(self, text: str, /, *more: str) -> str: ...

class QueueFull(Exception):
    http_status = 429

def model(function=None, **settings): ...
''',
    "deploy/__init__.py": "__all__: list[str] = []",
    "llm/__init__.py": "__all__: list[str] = []",
    "testing/__init__.py": "__all__: list[str] = []",
}


def stubs_of(folder: Path, **changed: str) -> str:
    """Of the package above, with these texts replaced by others."""
    for name, text in PACKAGE.items():
        for old, new in changed.items():
            text = text.replace(old, new)
        (folder / "wherry" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "wherry" / name).write_text(text)
    return stubs(folder)


def test_what_is_public_is_written_as_stubs_with_what_is_inherited(tmp_path: Path) -> None:
    assert stubs_of(tmp_path).splitlines() == [
        "# wherry",
        "class Child(Base):",
        "    def __init__(self, size: int) -> None: ...",
        "    async def ask(self, text: str, /, *more: str) -> str: ...",
        "    size: int",
        "    def start(self, *, timeout: float = 1.0) -> None: ...",
        "    def taken(self, state: list[_State]) -> None: ...",
        "class QueueFull(Exception):",
        "    http_status: object = 429",
        "def model(function=None, **settings): ...",
        "# wherry.deploy",
        "# wherry.llm",
        "# wherry.testing",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("timeout: float = 1.0", "seconds: float = 1.0", "start: Parameter was removed (old"),
        ("timeout: float = 1.0", "timeout: float", "start: Parameter is now required (old"),
        ("timeout: float = 1.0", "timeout: float = 2.0", "start: Parameter default was changed"),
        ("text: str, /", "more: str, text: str, /", "ask: Positional parameter was moved"),
        ("async def ask", "async def asked", "wherry.Child.ask: Public object was removed"),
        ("def start", "def _start", "wherry.Child.start: Public object was removed"),
        ("    size: int\n", "", "wherry.Child.size: Public object was removed"),
        ("size: int)", "size: int, more: int)", "__init__: Parameter was added as required"),
        ("http_status = 429", "http_status = 503", "Value was changed (old 429, new 503)"),
        ("QueueFull(Exception)", "QueueFull", "wherry.QueueFull: Base class was removed"),
        ('"QueueFull", ', "", "wherry.QueueFull: Public object was removed"),
        ("timeout: float", "timeout: int", "start(timeout): Annotation was changed (old float"),
        ("*more: str", "*more: bytes", "ask(more): Annotation was changed (old str, new bytes)"),
        ("-> str:", "-> str | None:", "ask(): Annotation was changed (old str, new str | None)"),
        ("-> str:", "-> Any:", "ask(): Annotation was changed (old str, new Any)"),
        ("-> str:", ":", "ask(): Annotation was changed (old str, new None)"),
        ("    size: int\n", "    size: str\n", "size: Annotation was changed (old int, new str)"),
    ],
)  # fmt: skip
def test_what_was_taken_away_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    before = stubs_of(tmp_path / "before")
    found = list(breaks(before, stubs_of(tmp_path / "now", **{old: new})))
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timeout: float = 1.0", "timeout: float = 1.0, more: int = 0"),
        ("def _private(self)", "def public(self)"),
        ("self.held", "self.kept"),
        ("class Base:", "class Base:\n    extra: int = 1\n"),
        ("timeout: float", "timeout: float | None"),
        ("timeout: float", "timeout: object"),
        ("timeout: float =", "timeout="),
        ("text: str, /", "text: bytes | Path | str, /"),
        ("-> str:", "-> Literal['a', 'b']:"),
        ("list[_State]", "list[State]"),
        ("model(function=None", "model(function: int = None"),
    ],
)
def test_what_was_added_or_was_never_public_breaks_nobody(
    tmp_path: Path, old: str, new: str
) -> None:
    before = stubs_of(tmp_path / "before")
    assert list(breaks(before, stubs_of(tmp_path / "now", **{old: new}))) == []


@pytest.mark.parametrize(
    ("wide", "narrow", "allowed"),
    [
        ("str | None", "Optional[str]", True),
        ("Union[int, str]", "str | int", True),
        ("Literal['a', 'b', 'c']", "Literal['c', 'a']", True),
        ("Literal['a']", "Literal['a', 'b']", False),
        ("Literal['a']", "str", False),
        ("Literal[Kind.a] | None", "Literal[Kind.a]", True),
        ("str", "Literal[Kind.a]", False),
        ("collections.abc.Sequence[str]", "list[str]", True),
        ("Sequence[str]", "list[str] | tuple[str, ...]", False),
        ("list[str]", "Sequence[str]", False),
        ("list[str | int]", "list[int | str]", True),
        ("list[str | int]", "list[int]", False),
        ("Callable[[int | str], None]", "Callable[[str | int], None]", True),
        ("Callable[..., None]", "Callable[[str], None]", False),
        ("Mapping[str, Any]", "dict[str, Any]", True),
        ("npt.NDArray[np.float32]", "NDArray[float32]", True),
        ("'Client'", "Client", True),
        ("list['Client | None']", "list[None | Client]", True),
    ],
)
def test_a_wider_annotation_allows_what_a_narrower_one_says(
    wide: str, narrow: str, allowed: bool
) -> None:
    assert covers(wide, narrow) is allowed


def test_a_name_that_is_gone_is_named_and_one_that_came_is_not() -> None:
    assert lost(["command wherry serve --port", "metric a"], ["metric a", "metric b"]) == [
        "command wherry serve --port"
    ]


@pytest.mark.parametrize(
    ("released", "now", "allowed"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.1.7", False),
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.9.0", "1.0.0", True),
        ("1.2.0", "1.3.0", False),
        ("1.2.0", "2.0.0", True),
        ("1.2.0", "1.1.0", False),
    ],
)
def test_what_is_public_changes_with_the_first_number_that_is_not_zero(
    released: str, now: str, allowed: bool
) -> None:
    assert is_allowed(released, now) is allowed


@pytest.mark.slow
def test_nothing_public_was_taken_away_since_the_last_release() -> None:
    """If it has to be: docs/reference/public-api.md says how."""
    assert since_the_release() == []


@pytest.mark.slow
def test_every_name_between_parts_is_there_and_is_not_public() -> None:
    import wherry

    shown = stubs()
    for name in BETWEEN_PARTS:
        owner, _, method = name.partition(".")
        assert hasattr(getattr(wherry, owner), method)
        assert f"def {method}(self" not in shown
