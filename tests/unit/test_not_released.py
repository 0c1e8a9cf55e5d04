"""Until the release, nothing tells a reader to download what is not there yet."""

import re
from pathlib import Path

import pytest

from wherry.server.cli.init import ON_INDEX

ROOT = Path(__file__).parents[2]
#: What readers and users see; decisions and what is about the release itself are for developers.
SEEN = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/[!i]*/**/*.md"),
    *ROOT.glob("examples/**/*.*"),
    *ROOT.glob("deploy/**/*.*"),
    *ROOT.glob("wherry/**/*.py"),
    *ROOT.glob("wherry/**/*.txt"),
]
#: wherry[extra] is right where wherry is installed: pip takes the extra's packages only.
DOWNLOADS = re.compile(
    r"pip install (?:-\S+ )*['\"]?wherry(?=['\"\s`=<>~]|$)|\b(?:pipx|uvx|uv tool) \S*\s?wherry"
    r"|docker (?:pull|run) (?:-\S+ )*wherry|(?:ghcr|docker)\.io/\S*wherry|helm (?:repo|install)",
    re.MULTILINE,
)


@pytest.mark.skipif(ON_INDEX, reason="the index has it")
def test_nothing_names_a_download_that_is_not_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SEEN
        if path.suffix in (".md", ".py", ".txt", ".yaml", ".yml", ".service", ".toml")
        for match in DOWNLOADS.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "say how it is made in the checkout; see ON_INDEX"


def test_a_download_is_noticed() -> None:
    for text in (
        "pip install wherry\n", "pip install --upgrade 'wherry'", "pip install wherry==0.1.0",
        "uvx wherry serve", "docker run --rm wherry:0.1.0", "image: ghcr.io/us/wherry:0.1.0",
    ):  # fmt: skip
        assert DOWNLOADS.search(text), text
    assert not DOWNLOADS.search("pip install 'wherry[onnx]'\npip install ./plugins/wherry_redis")
