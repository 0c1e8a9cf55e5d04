"""Which commands are there, and what do they take?

Results go to stdout, everything else to stderr. Exit codes: 0 done (serve: drained), 1 failed,
2 the command line or the configuration is wrong, 3 a model could not be loaded, 130 Ctrl-C.

What a command needs is imported when it runs, so that --help costs nothing.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from wherry import __version__
from wherry.server.cli.help import Parser
from wherry.server.cli.triton_options import in_our_words
from wherry.server.options import OPTIONS, PREFIX

#: The part that brings bench and top. It stands above this one.
_BENCH = "wherry.bench.api"

FAILED = 1
USAGE = 2
LOAD_FAILED = 3

DEFAULT_URL = "http://127.0.0.1:8000"

TARGET_HELP = (
    "a file (app.py), a module (package.app), an object in one (app.py:sentiment), a folder of"
    " models (a Triton model repository), or a language model (llm:FOLDER, llm:FILE.gguf,"
    " llm:ORG/MODEL)"
)

#: The flags of serve that its --help shows.
EVERYDAY = (
    "--config", "--host", "--port", "--grpc-port", "--fronts", "--api-key-file", "--drain-timeout",
    "--isolation", "--instances", "--request-timeout", "--reload", "--log-level", "--log-format",
)  # fmt: skip
#: Those of check and config, which listen on no address.
FEW = ("--config", "--isolation", "--instances", "--log-level")

#: What a write to a full disk, or beyond a limit of it, fails with.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

PRECEDENCE = (
    "Every flag can also be a variable (WHERRY_LOG_LEVEL) or, with lower precedence, a key in"
    " wherry.toml or in [tool.wherry] of pyproject.toml ([server] log_level)."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the process's exit code."""
    # Values may stand after a flag, too: `wherry call words --stream "a b c"`.
    words, ignored = in_our_words(sys.argv[1:] if arguments is None else arguments)
    root = parser()
    if not words:
        root.exit(USAGE, root.format_help())
    args, rest = root.parse_known_args(words)
    args.ignored = ignored
    if rest and (not hasattr(args, "value") or any(word.startswith("-") for word in rest)):
        _not_known(rest, args.of)
    if rest:
        args.value += rest
    from wherry.core.api import ConfigError, WherryError

    module, _, function = args.run.partition(":")
    try:
        code = int(getattr(importlib.import_module(f"wherry.{module}"), function)(args))
        sys.stdout.flush()
        return code
    except WherryError as error:
        from wherry.server.cli.show import printable

        # A server's words may be a stranger's.
        sys.stderr.write(f"wherry: {printable(str(error), keep=chr(10) + chr(9))}\n")
        return USAGE if isinstance(error, ConfigError) else FAILED
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        sys.stderr.write(f"wherry: {error.object!a:.200} is not text in UTF-8\n")
        return USAGE
    except BrokenPipeError:
        # The reader of our output has enough: `wherry models | head -1`. Not an error, but
        # Python would complain again when it flushes stdout at exit.
        _drop_output()
        return FAILED
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        sys.stderr.write(f"wherry: the output could not be written: {error.strerror}\n")
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """Let Python flush at its exit what could not be written to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_known(words: Sequence[str], of: argparse.ArgumentParser) -> NoReturn:
    """Refuse the command line, with a guess at each flag that was meant."""
    flags = [flag for action in of._actions for flag in action.option_strings]
    close = [_close(word.partition("=")[0], flags) for word in words]
    meant = " ".join(flag for found in close for flag in found)
    of.error(
        f"unrecognized arguments: {' '.join(words)}" + f"; did you mean {meant}?" * bool(meant)
    )


def _close(word: str, flags: Sequence[str]) -> list[str]:
    """The flag that is spelt alike, or that begins with the letter of a short one."""
    if len(word) == 2:
        return [flag for flag in EVERYDAY if flag in flags and flag[1:3] == word][:1]
    return difflib.get_close_matches(word, flags, n=1, cutoff=0.7)


def parser() -> argparse.ArgumentParser:
    root = Parser(
        prog="wherry",
        description="Serve models: batched, streaming, observable.",
        epilog="wherry COMMAND --help shows its flags and examples.",
    )
    root.add_argument("--version", action="version", version=f"wherry {__version__}")
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    for add in (_add_serving, _add_call, _add_questions, _add_around):
        add(commands)
    importlib.import_module(_BENCH).add_commands(commands, _command, _add_client)
    _add_completion(commands)
    return root


def _add_serving(commands: Any) -> None:
    serve = _command(
        commands, "serve", "serve models over HTTP", "server.cli.serve:serve", PRECEDENCE, EVERYDAY
    )
    serve.add_argument("target", nargs="*", metavar="TARGET", help=TARGET_HELP)
    _add_settings(serve)

    check = _command(
        commands,
        "check",
        "load the models, run their examples, show their settings",
        "server.cli.check:check",
        PRECEDENCE,
        ("--all", *FEW),
    )
    check.add_argument("target", nargs="*", metavar="TARGET", help=TARGET_HELP)
    check.add_argument("--all", action="store_true", help="show all settings of each model")
    _add_settings(check)

    config = _command(
        commands,
        "config",
        "show the server's settings",
        "server.cli.show:show_settings",
        PRECEDENCE,
        FEW,
    )
    _add_settings(config)


def _add_call(commands: Any) -> None:
    call = _command(
        commands,
        "call",
        "call a model of a running server",
        "server.cli.call:call",
        "Each VALUE is one row: of the model's only input, or a JSON object of its inputs; - reads"
        " a row from each line of stdin. For a chat model it is the user's message, and"
        " max_tokens=20 after it a parameter.",
    )
    call.add_argument("model", metavar="MODEL", help="name, or name:version")
    call.add_argument(
        "value",
        nargs="*",
        metavar="VALUE",
        help="a row: text, JSON for numbers, @FILE for bytes or JSON (@-: stdin); NAME=VALUE if"
        " there are several inputs",
    )
    call.add_argument("--stream", action="store_true", help="print responses as they come")
    call.add_argument("--json", action="store_true", help="always print one JSON value per line")
    call.add_argument("--timeout", type=float, metavar="SECONDS", help="timeout of the request")
    _add_client(call)

    chat = _command(
        commands,
        "chat",
        "talk with a language model",
        "server.cli.chat:chat",
        "Default: the server's only chat model. A checkpoint is served for as long as the chat"
        " lasts. If stdin is not a terminal, each line is a message. In a browser, open /chat at"
        " the server's address.",
    )
    chat.add_argument(
        "model", nargs="?", metavar="MODEL", help="a model's name, or a checkpoint: llm:FILE.gguf"
    )
    chat.add_argument(
        "value", nargs="*", metavar="NAME=VALUE", help="a parameter, such as temperature=0.2"
    )
    chat.add_argument("--system", default="", metavar="TEXT", help="the system prompt")
    chat.add_argument("--timeout", type=float, metavar="SECONDS", help="timeout of an answer")
    _add_client(chat)


def _add_questions(commands: Any) -> None:
    """models and explain: they query a running server."""
    models = _command(
        commands, "models", "list the models of a running server", "server.cli.call:models"
    )
    models.add_argument("--json", action="store_true", help="print one JSON object per line")
    _add_client(models)

    explain = _command(
        commands,
        "explain",
        "explain a model's batches, and how to change them",
        "server.cli.explain:explain",
    )
    explain.add_argument("model", metavar="MODEL", help="name, or name:version")
    explain.add_argument("--json", action="store_true", help="print the server's answer unchanged")
    _add_client(explain)


def _add_around(commands: Any) -> None:
    """init, doctor, grafana: what surrounds a server."""
    init = _command(
        commands,
        "init",
        "write a starter project: a model, its test and a Dockerfile",
        "server.cli.init:init",
        "Existing files are never overwritten.",
    )
    init.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to write [.]")
    init.add_argument(
        "--template", default="text", metavar="NAME", help="template to start from [text]"
    )
    init.add_argument("--list", action="store_true", help="print the templates and exit")

    doctor = _command(
        commands,
        "doctor",
        "check this machine: versions, devices, limits, ports, packages",
        "server.cli.doctor:doctor",
        "Exit code 1 if something would stop a server from working.",
    )
    doctor.add_argument(
        "target", nargs="*", metavar="TARGET", help="also check the packages it needs"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object per line")
    doctor.add_argument(
        "--gpu", action="store_true", help="also memory, power, ECC, MIG and links of each GPU"
    )
    doctor.add_argument("--port", type=int, default=8000, help="HTTP port to try [8000]")
    doctor.add_argument("--grpc-port", type=int, default=8001, help="gRPC port to try [8001]")

    board = _command(
        commands,
        "grafana",
        "print the Grafana dashboard, or the alert rules",
        "server.cli.packaged:grafana",
        "wherry grafana > board.json, and import it; wherry grafana --alerts > rules.yml, and name"
        " it in rule_files of Prometheus.",
    )
    board.add_argument("--alerts", action="store_true", help="print Prometheus alert rules")


def _add_completion(commands: Any) -> None:
    completion = _command(
        commands,
        "completion",
        "print the script for shell completion",
        "server.cli.completion:completion",
        'bash: eval "$(wherry completion bash)" in ~/.bashrc; zsh: the same, in ~/.zshrc, after'
        " compinit; fish: wherry completion fish > ~/.config/fish/completions/wherry.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    completion.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="the words so far: print completions of the last one (for the script)",
    )


def _command(
    commands: Any,
    name: str,
    help: str,
    run: str,
    epilog: str | None = None,
    everyday: Sequence[str] = (),
) -> Parser:
    """Add a command. `run`: module below wherry and function that carry it out. `everyday`: the
    flags that --help shows, if not all."""
    made: Parser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=epilog,
        everyday=everyday,
    )
    made.set_defaults(run=run, of=made)
    return made


def _add_settings(to: argparse.ArgumentParser) -> None:
    to.add_argument("--config", metavar="PATH", help="settings file (default: wherry.toml)")
    groups = {
        name: to.add_argument_group(name.replace("_", " "))
        for name in dict.fromkeys(option.group for option in OPTIONS.values())
    }
    for option in OPTIONS.values():
        shown: dict[str, Any] = {
            "default": None,
            "help": _with_default(option.help, option.default),
        }
        if option.is_switch:
            shown["action"] = argparse.BooleanOptionalAction
        else:
            shown["metavar"] = (
                "|".join(option.choices) or option.metavar or option.key.rpartition("_")[2].upper()
            )
            if option.separator:
                shown["action"] = "append"
        groups[option.group].add_argument(option.flag, **shown)


def _with_default(help: str, default: Any) -> str:
    return help if default in (None, (), False) else f"{help} [{default}]"


def _add_client(to: argparse.ArgumentParser) -> None:
    url = os.environ.get(f"{PREFIX}URL", DEFAULT_URL)
    to.add_argument("--url", default=url, help=f"the server, or WHERRY_URL [{DEFAULT_URL}]")
    to.add_argument(
        "--api-key",
        default=os.environ.get(f"{PREFIX}API_KEY", "").partition(",")[0] or None,
        metavar="KEY",
        help="bearer key, or WHERRY_API_KEY",
    )
    to.add_argument("--ssl-ca", metavar="PATH", help="CA certificates to trust, for https")
