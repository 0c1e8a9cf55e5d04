"""What does --help show, and what is printed for a word that is not a command?"""

from __future__ import annotations

import argparse
import copy
import difflib
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Serve": ("serve", "check", "config", "init"),
    "Use a running server": ("call", "chat", "models", "explain", "top"),
    "Measure and operate": ("bench", "doctor", "grafana", "completion"),
}

EXAMPLES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "wherry init hello": "write a starter project into the folder hello",
        "wherry serve app.py": "serve the models in app.py",
        'wherry call sentiment "a good day"': "call one of them",
    },
    "serve": {
        "wherry serve app.py --reload": "reload after each save",
        "wherry serve models/ --grpc-port 8001": "a Triton model repository",
        "wherry serve llm:ORG/MODEL": "a language model",
    },
    "check": {"wherry check app.py": "before serving it, and in CI"},
    "config": {"wherry config --config prod.toml": "what serve would use"},
    "init": {
        "wherry init hello": "then: cd hello; wherry serve app.py",
        "wherry init --template search hello": "with a model of sentence embeddings",
    },
    "call": {
        'wherry call sentiment "a good day"': "the only input",
        "wherry call search text=shoes top_k=3": "inputs by name",
        "wherry call detect image=@photo.jpg": "a file",
        "wherry call sentiment - < rows.txt": "a row from each line",
    },
    "chat": {
        "wherry chat": "with the model of a running server",
        "wherry chat smollm temperature=0.2": "one of several",
        "wherry chat llm:smollm.gguf": "without a server",
    },
    "models": {"wherry models --url http://gpu-1:8000": "of another machine"},
    "explain": {"wherry explain sentiment": "while the server is in use"},
    "top": {"wherry top": "until q", "wherry top --once": "for a script"},
    "bench": {
        "wherry bench app.py": "start a server, and find its best load",
        "wherry bench sentiment": "a model of the running server",
        "wherry bench http://gpu-1:8000 --model m": "one that runs",
    },
    "doctor": {
        "wherry doctor": "this machine",
        "wherry doctor app.py": "and the packages that app.py imports",
        "wherry doctor --gpu": "with details of its GPUs",
    },
    "grafana": {"wherry grafana > board.json": "then import it into Grafana"},
    "completion": {'eval "$(wherry completion bash)"': "in ~/.bashrc"},
}

WIDEST_FLAG = 28


#: What other programs call it.
_OTHERS_CALL: Final = {
    "run": "serve", "start": "serve", "deploy": "serve", "list": "models", "ls": "models",
    "infer": "call", "predict": "call", "test": "check", "validate": "check", "new": "init",
    "benchmark": "bench", "help": "--help", "version": "--version",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose --help shows the flags in `everyday` only, and --help-all all of them in their
    groups. With no `everyday` there is one --help for all. Examples end it."""

    def __init__(self, *args: Any, everyday: Collection[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _formatter)
        super().__init__(*args, **kwargs)
        self._positionals.title = "arguments"
        self.everyday = everyday
        if everyday:
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show all flags, in groups, and exit"
            )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"no command {value!r}{_meant(value, action.choices)}")
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
        target = f" [TARGET{' ...' * several}]" * any(not a.option_strings for a in self._actions)
        formatter.add_usage(f"%(prog)s [FLAGS]{target}", [], [])
        return formatter.format_help()

    def format_help(self) -> str:
        commands = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        if commands:
            return f"{self.format_usage()}\n{self.description}\n\n{_listed(commands[0])}" + (
                f"{self._examples()}\n{self.epilog}\n"
            )
        if not self.everyday:
            return super().format_help() + self._examples()
        kept = {"-h", "--help-all", *self.everyday}
        actions = [
            _in_short(one)
            for one in self._actions
            if not one.option_strings or kept & {*one.option_strings}
        ]
        return self._formatted({"": actions})

    def format_help_all(self) -> str:
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
        return f"{self.format_usage()}\n{formatter.format_help()}{self._examples()}"

    def _examples(self) -> str:
        lines = EXAMPLES.get(self.prog.partition(" ")[2], {})
        return "\nexamples:\n" + _columns(lines) if lines else ""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is not None and file.isatty() and not os.environ.get("NO_COLOR"):
            message = re.sub(r"^(\w[\w ]*:)(?=$| )", "\033[1m\\1\033[0m", message, flags=re.M)
        super()._print_message(message, file)


def _meant(word: str, commands: Collection[str]) -> str:
    close = difflib.get_close_matches(word, commands, n=1)
    if close or word in _OTHERS_CALL:
        return f"; did you mean {close[0] if close else _OTHERS_CALL[word]!r}?"
    if word.endswith(".py") or word.startswith("llm:") or os.path.exists(word):
        return f"; did you mean `wherry serve {word}`?"
    return "; wherry --help lists them"


def _listed(commands: argparse._SubParsersAction[Any]) -> str:
    helps = {one.dest: one.help or "" for one in commands._choices_actions}
    width = max(map(len, helps))
    return "\n".join(
        f"{title}:\n" + _columns({name: helps[name] for name in names}, width)
        for title, names in GROUPS.items()
    )


def _columns(lines: Mapping[str, str], width: int = 0) -> str:
    width = width or max(map(len, lines))
    return "".join(f"  {line:<{width}}  {what}\n" for line, what in lines.items())


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
        parser._print_message(parser.format_help_all(), sys.stdout)
        parser.exit()


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=WIDEST_FLAG)
