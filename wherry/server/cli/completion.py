"""What may the next word of a command line be? `wherry completion`.

A shell's script is a few lines that call this program, so that it knows the flags of the version
that is installed, and the models of the server that runs.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_Commands = argparse._SubParsersAction

#: What a model's name may have to be offered: nothing that a shell reads otherwise.
_PLAIN: Final = re.compile(r"[\w.+-]+")

#: Seconds that a server may take to name its models.
_SERVER_TIMEOUT: Final = 1.0

SCRIPTS: Final = {
    "bash": """\
_wherry() {
    mapfile -t COMPREPLY < <(wherry completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -o nosort -F _wherry wherry
""",
    "zsh": """\
#compdef wherry
_wherry() {
    local -a found
    found=("${(@f)$(wherry completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then _describe -V wherry found; else _files; fi
}
if [ "$funcstack[1]" = "_wherry" ]; then _wherry "$@"; else compdef _wherry wherry; fi
""",
    "fish": """\
function __wherry
    set -l words (commandline -opc) (commandline -ct | string collect --allow-empty)
    wherry completion fish -- $words[2..-1] 2>/dev/null
    or __fish_complete_path (commandline -ct)
end
complete -c wherry -f -a '(__wherry)'
""",
}


def completion(args: argparse.Namespace) -> int:
    """Print the script of a shell or, with words, what the last of them may become, one a line.
    Exit code 1 if that is nothing known: it may be a file."""
    if not args.words:
        sys.stdout.write(SCRIPTS[args.shell])
        return 0
    from wherry.server.cli import parser

    words = [word for word in args.words if word != "="]  # bash makes a word of it
    if args.words[-1] == "=":
        words.append("")
    flag, equals, value = words[-1].partition("=")
    stem = f"{flag}=" if equals and flag.startswith("--") else ""
    if stem:
        words[-1:] = [flag, value]
    found = dict(_candidates(parser(), words, os.environ))
    for word, description in found.items():
        sys.stdout.write(_line(args.shell, stem + word, " ".join(description.split())) + "\n")
    return 0 if found else 1


def _line(shell: str, word: str, description: str) -> str:
    if shell == "zsh":
        return word.replace(":", "\\:") + (f":{description}" if description else "")
    return f"{word}\t{description}" if shell == "fish" and description else word


def _candidates(
    of: argparse.ArgumentParser, words: Sequence[str], environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What the last word may become, and what that does."""
    *before, begun = words
    commands = next((one for one in of._actions if isinstance(one, _Commands)), None)
    if commands is not None and before:
        if before[0] in commands.choices:
            yield from _candidates(commands.choices[before[0]], words[1:], environ)
        return
    flags = {name: one for one in of._actions for name in one.option_strings}
    flag = flags.get(before[-1]) if before else None
    if flag is not None and flag.nargs != 0:
        offered = _values(flag, before, environ)
    elif begun.startswith("-"):
        offered = ((name, _help(one)) for name, one in flags.items() if name.startswith("--"))
    elif commands is not None:
        offered = ((one.dest, _help(one)) for one in commands._choices_actions)
    else:
        places = [one for one in of._actions if not one.option_strings]
        filled = sum(1 for _ in _positional(before, flags))
        offered = _values(places[filled], before, environ) if filled < len(places) else iter(())
    yield from (one for one in offered if one[0].startswith(begun))


def _positional(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> Iterator[str]:
    """The words that are neither flags nor values of flags."""
    takes = False
    for word in words:
        action = flags.get(word)
        if action is None and not takes:
            yield word
        takes = action is not None and action.nargs != 0


def _values(
    of: argparse.Action, before: Sequence[str], environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The values that an argument may have, where they are known."""
    metavar = of.metavar if isinstance(of.metavar, str) else ""
    if of.choices is not None:
        yield from ((str(one), "") for one in of.choices)
    elif re.fullmatch(r"[a-z0-9_.]+(\|[a-z0-9_.]+)+", metavar):
        yield from ((one, "") for one in metavar.split("|"))
    elif of.dest == "model":
        yield from _models(before, environ)


def _models(before: Sequence[str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The models of the server that the words or the environment name; none if it is silent."""
    from wherry.core.api import Client, WherryError
    from wherry.server.cli import DEFAULT_URL
    from wherry.server.options import PREFIX

    values = dict(itertools.pairwise(before))
    url = values.get("--url") or environ.get(f"{PREFIX}URL") or DEFAULT_URL
    key = values.get("--api-key") or environ.get(f"{PREFIX}API_KEY", "").partition(",")[0] or None
    try:
        with Client(url, api_key=key, timeout=_SERVER_TIMEOUT) as client:
            names = [str(model["name"]) for model in client.models()]
    except (OSError, ValueError, http.client.HTTPException, WherryError):
        return
    yield from ((name, "") for name in names if _PLAIN.fullmatch(name))


def _help(of: argparse.Action) -> str:
    return str(of.help or "").replace("%%", "%")
