"""How does a page of documentation run?

    python -P tests/examples/pages.py PAGE...    with the wherry that is installed

    ```python      a first line `# app.py` makes it that file; anything else runs, in order, in one
                   namespace, and an expression followed by `# -> value` must have that value
    ```toml        a first line `# wherry.toml` makes it that file
    ```console     `$ wherry serve ...` starts that server, any other `$ ...` runs; the lines below
                   it are what it prints, `...` being anything; numbers in a server's log may differ
    any other      is for reading

A page's blocks run in order, in a folder of its own; what they say of 127.0.0.1:8000 goes to the
page's server, which has a free port.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wherry.testing import ServerProcess

ADDRESS = "127.0.0.1:8000"


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """The page's code blocks; `line` is where their text begins."""
    content = page.read_text(encoding="utf-8")
    return [
        Block(m[1], m[2], content[: m.start(2)].count("\n") + 1)
        for m in re.finditer(r"^```(\w+)\n(.*?)^```", content, re.DOTALL | re.MULTILINE)
    ]


class Page:
    """One page, as far as it has run. AssertionErrors name the line of the page."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder
        self.server: ServerProcess | None = None
        self._module = types.ModuleType(path.stem.replace("-", "_"))
        self._stack = ExitStack()

    def run(self) -> dict[str, Any]:
        """Run every block; what the page has defined."""
        for block in blocks_of(self.path):
            if block.language == "console":
                self._run_console(block)
            elif named := re.match(r"# (\w+\.(?:py|toml))\n", block.text):
                (self.folder / named[1]).write_text(self._here(block.text), encoding="utf-8")
            elif block.language == "python":
                self._run_python(block)
        return self._module.__dict__

    def close(self) -> None:
        self._stack.close()

    def _at(self, block: Block, offset: int = 0) -> str:
        return f"{self.path.name}, line {block.line + offset}"

    def _here(self, text: str) -> str:
        if self.server is None:
            return text
        return text.replace(ADDRESS, urlsplit(self.server.url).netloc)

    def _run_python(self, block: Block) -> None:
        tree = ast.parse(self._here(block.text), str(self.path))
        tree = ast.fix_missing_locations(_Shown(block, self._at).visit(tree))
        ast.increment_lineno(tree, block.line - 1)
        self._module.__dict__["_shows"] = _shows
        exec(compile(tree, str(self.path), "exec", dont_inherit=True), self._module.__dict__)

    def _run_console(self, block: Block) -> None:
        for number, command, shown in _commands(block.text):
            where = self._at(block, number)
            if command.startswith("wherry serve "):
                self._stack.close()
                self.server = self._stack.enter_context(
                    ServerProcess(*command.split()[2:], cwd=str(self.folder), env=self._env())
                )
                url = self.server.url
                log = self.server.log.replace(url, f"http://{ADDRESS}")
                assert _fits(_any_number(shown), _any_number(log)), f"{where} prints:\n{log}"
                continue
            done = subprocess.run(
                ["/bin/bash", "-c", self._here(command)],
                cwd=self.folder,
                env=self._env(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{where} fails:\n{done.stdout}"
            assert _fits(shown, done.stdout), f"{where} prints:\n{done.stdout}"

    def _env(self) -> dict[str, str]:
        tools = Path(sys.executable).parent
        own = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
        url = {} if self.server is None else {"WHERRY_URL": self.server.url}
        return {**own, "PATH": f"{tools}{os.pathsep}{own['PATH']}", **url}


@contextmanager
def opened(path: Path, folder: Path) -> Iterator[Page]:
    """The page in a folder of its own, from which its code may import."""
    page = Page(path, folder)
    sys.path.insert(0, str(folder))
    known = set(sys.modules)
    try:
        yield page
    finally:
        page.close()
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(folder)):
                del sys.modules[name]


def _commands(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, command (its continuation lines joined) and what it is said to print."""
    found: list[tuple[int, list[str], list[str]]] = []
    for number, line in enumerate(text.splitlines()):
        if line.startswith("$ "):
            found.append((number, [line[2:]], []))
        elif found and _goes_on("\n".join(found[-1][1])):
            found[-1][1].append(line)
        elif found:
            found[-1][2].append(line)
    for number, command, shown in found:
        yield number, "\n".join(command), "\n".join(shown)


def _goes_on(command: str) -> bool:
    """Does the shell wait for another line of it?"""
    return command.endswith("\\") or command.count("'") % 2 == 1


def _fits(shown: str, printed: str) -> bool:
    """Does this show what was printed? Showing nothing promises nothing."""
    pattern = ".*".join(map(re.escape, shown.strip().split("...")))
    return not shown.strip() or bool(re.fullmatch(pattern, printed.strip(), re.DOTALL))


def _any_number(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "0", text)


def _shows(value: object, shown: str, where: str) -> None:
    assert _fits(shown, repr(value)), f"{where}: it is {value!r}"


class _Shown(ast.NodeTransformer):
    """`expression  # -> value` becomes a check of its value."""

    def __init__(self, block: Block, at: Any) -> None:
        self._block = block
        self._at = at

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        number = (node.end_lineno or node.lineno) - 1
        comment = re.search(r"  # -> (.*)$", self._block.text.splitlines()[number])
        if comment is None:
            return node
        where = ast.Constant(self._at(self._block, number))
        arguments = [node.value, ast.Constant(comment[1]), where]
        call = ast.Call(ast.Name("_shows", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as folder, opened(path.resolve(), Path(folder)) as page:
            os.chdir(folder)
            page.run()


if __name__ == "__main__":
    main(sys.argv[1:])
