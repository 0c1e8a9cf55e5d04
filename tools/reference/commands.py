"""What does the page about the command line say?"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from tools.reference.python import WRITTEN
from wherry.server.cli import parser
from wherry.server.options import OPTIONS

WRITTEN_FROM = WRITTEN.replace("docstrings", "parsers in wherry/server/cli")

HEAD = """\
# Command line

Results go to stdout, everything else to stderr. Exit codes: 0 done (`serve`: drained), 1 failed, 2
the command line or the configuration is wrong, 3 a model could not be loaded, 130 Ctrl-C. `python
-m wherry` is the same program.

Commands that call a running server take `--url URL` (default: `WHERRY_URL`, or http://127.0.0.1:8000),
`--api-key KEY` (a bearer key; default: `WHERRY_API_KEY`) and `--ssl-ca PATH` (CA certificates to
trust, for https).
"""

SETTINGS = (
    "\nIt also takes the [flags of the server](configuration.md), each of which can also be a"
    " variable or a key in a file.\n"
)
#: Flags of each command that calls a running server.
CLIENT = ("--url", "--api-key", "--ssl-ca")


def commands_page() -> str:
    """docs/reference/cli.md."""
    root = parser()
    commands = _commands(root)
    parts = [WRITTEN_FROM, HEAD, "\n| command | does |\n|---|---|\n"]
    for command, told in commands.values():
        parts.append(f"| [`{command.prog}`](#{_anchor(command.prog)}) | {_cell(told)} |\n")
    for command, _ in commands.values():
        parts += _command(command, f"## `{command.prog}`")
    return "".join(parts)


def _commands(of: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """The commands below a parser with what its help says of them, in their order."""
    found: dict[str, tuple[argparse.ArgumentParser, str]] = {}
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {one.dest: one.help or "" for one in action._choices_actions}
            for name, command in action.choices.items():
                if all(command is not other for other, _ in found.values()):  # else an alias
                    found[name] = (command, told.get(name, ""))
    return found


def _command(of: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    yield f"\n{heading}\n\n{_text(of.description)}\n"
    below = _commands(of)
    flags = {option.flag for option in OPTIONS.values()}
    takes_settings = flags <= {*of._option_string_actions}
    own = [
        action
        for action in of._actions
        if not (takes_settings and flags & {*action.option_strings})
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and not {*CLIENT} & {*action.option_strings}
    ]
    if of.prog == "wherry bench":
        yield "\n[Its flags](bench.md) are on another page.\n"
    elif own:
        yield "\n| argument | meaning |\n|---|---|\n"
        yield from (f"| `{_cell(_written(one))}` | {_cell(_help(one))} |\n" for one in own)
    if takes_settings:
        yield SETTINGS
    elif of.epilog:
        yield f"\n{_text(of.epilog)}\n"
    for command, _ in below.values():
        yield from _command(command, f"### `{command.prog}`")


def _written(action: argparse.Action) -> str:
    """How it is written on the command line."""
    named = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices and action.metavar is None:
        named = "|".join(map(str, action.choices))
    takes = action.nargs != 0
    if not action.option_strings:
        return {"*": f"[{named} ...]", "?": f"[{named}]", "+": f"{named} ..."}.get(
            str(action.nargs), named
        )
    return ", ".join(action.option_strings) + (f" {named}" if takes else "")


def _help(action: argparse.Action) -> str:
    return "" if action.help in (None, argparse.SUPPRESS) else str(action.help) % vars(action)


def _text(text: str | None) -> str:
    """A paragraph of a parser. What looks like a mark of Markdown is none."""
    return re.sub(r"([*_<|])", r"\\\1", re.sub(r"\s+", " ", text or "").strip())


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")
