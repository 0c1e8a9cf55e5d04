"""How much does --help say? One screen of what is used every day; --help-all says the rest."""

from __future__ import annotations

import argparse
import copy
import difflib
import re
import sys
from collections.abc import Collection
from typing import Any

WIDEST_FLAG = 28


class Parser(argparse.ArgumentParser):
    """A parser whose --help shows the flags in `everyday` only, and --help-all all of them in their
    groups. With no `everyday` there is one --help for all."""

    def __init__(self, *args: Any, everyday: Collection[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _formatter)
        super().__init__(*args, **kwargs)
        self.everyday = everyday
        if everyday:
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show all flags, in groups, and exit"
            )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            close = difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1)
            if close and "did you mean" not in error.message:
                error.message += f"; did you mean {close[0]!r}?"
            raise

    def format_usage(self) -> str:
        if not self.everyday:
            return super().format_usage()
        formatter = self._get_formatter()
        several = any(one.nargs == "*" for one in self._actions)
        formatter.add_usage(f"%(prog)s [FLAGS] [TARGET{' ...' * several}]", [], [])
        return formatter.format_help()

    def format_help(self) -> str:
        if not self.everyday:
            return super().format_help()
        kept = {"-h", "--help-all", *self.everyday}
        actions = [
            _in_short(one)
            for one in self._actions
            if not one.option_strings or kept & {*one.option_strings}
        ]
        return self._formatted({"": actions})

    def format_help_all(self) -> str:
        """The help with all flags."""
        groups = {one.title or "": one._group_actions for one in self._action_groups}
        return self._formatted(groups)

    def _formatted(self, groups: dict[str, list[argparse.Action]]) -> str:
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        for title, actions in groups.items():
            formatter.start_section(title or None)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return f"{self.format_usage()}\n{formatter.format_help()}"


def _in_short(action: argparse.Action) -> argparse.Action:
    """The action with the first clause of its help, and the default."""
    short = copy.copy(action)
    clause, _, rest = (action.help or "").partition("; ")
    default = re.search(r" \[[^\]]*\]$", rest)
    short.help = clause + (default[0] if default else "")
    return short


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_help_all())
        parser.exit()


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=WIDEST_FLAG)
