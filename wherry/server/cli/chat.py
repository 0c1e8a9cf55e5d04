"""How does a person talk with a language model from the shell? `wherry chat`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from wherry.core.api import Client, ConfigError, InvalidRequest, WherryError, configure
from wherry.llm.api import is_checkpoint
from wherry.server.cli.call import client_of, is_parameter, parameter, write_text
from wherry.server.cli.screen import LoadingLine, StatusLine
from wherry.server.cli.show import chats, printable
from wherry.server.server import Server
from wherry.server.targets import load_targets

HELP: Final = """\
/clear          forget the conversation  Ctrl-C  end the answer, or the chat
/system TEXT    how it is to behave      Ctrl-D  end the chat
/set NAME=VALUE a parameter: /set temperature=0.2, /set max_tokens=300
/bye            end the chat
"""

Answer = Callable[[dict[str, Any]], Iterator[Any]]


class Chat:
    """The conversation so far, and how it goes on. `answer` streams a model's answer to a row."""

    def __init__(self, answer: Answer, system: str, parameters: dict[str, Any]) -> None:
        self._answer = answer
        self._system = system
        self._parameters = parameters
        self._messages: list[dict[str, str]] = []

    def command(self, line: str) -> str:
        """Carry out a line that begins with a slash. Returns what to print."""
        word, _, text = line.partition(" ")
        if word == "/clear":
            self._messages.clear()
            return "a new conversation"
        if word == "/system":
            self._system = text.strip()
            return "from the next message on" if text else "no system prompt any more"
        if word == "/set" and is_parameter(text.strip()):
            name, _, value = text.strip().partition("=")
            self._parameters[name] = parameter(value)
            return f"{name} is {self._parameters[name]!r}"
        return HELP.rstrip()

    def answer_to(self, text: str) -> str:
        """Write the answer as it comes. Returns tokens and tokens a second, if it reports them.

        Ctrl-C ends the answer; what came of it stays in the conversation. After an error the
        message does not.
        """
        system = [{"role": "system", "content": self._system}] if self._system else []
        message = {"role": "user", "content": text}
        row: dict[str, Any] = {"messages": [*system, *self._messages, message]}
        if self._parameters:
            row["parameters"] = self._parameters
        pieces: list[Any] = []
        began = time.monotonic()
        try:
            write_text(_noted(self._answer(row), pieces))
        except KeyboardInterrupt:
            pass
        except InvalidRequest as error:
            if "no chat template" not in str(error):
                raise
            raise InvalidRequest(f"{error}; wherry call goes on with a text") from None
        seconds = time.monotonic() - began
        answer = "".join(one.get("text", "") if isinstance(one, dict) else one for one in pieces)
        self._messages += [message, {"role": "assistant", "content": answer}]
        usage = pieces[-1].get("usage") if pieces and isinstance(pieces[-1], dict) else None
        count = (usage or {}).get("completion_tokens")
        return f"{count} tokens, {count / seconds:.1f} a second" if count else ""


def _noted(responses: Iterator[Any], notes: list[Any]) -> Iterator[Any]:
    for response in responses:
        notes.append(response)
        yield response


def chat(args: argparse.Namespace) -> int:
    """Talk until Ctrl-D, /bye, or Ctrl-C at the prompt."""
    words = [word for word in (args.model, *args.value) if word]
    settings = [word for word in words if is_parameter(word)]
    names = [word for word in words if word not in settings]
    if len(names) > 1:
        raise ConfigError(f"chat: one model, and NAME=VALUE; what is {names[1]!r}?")
    parameters = {name: parameter(value) for name, _, value in (s.partition("=") for s in settings)}
    with ExitStack() as stack:
        if names and (is_checkpoint(names[0]) or names[0].endswith(".gguf")):
            args.url, args.api_key = stack.enter_context(_served(names[0])).url, None
            names = []
        client = stack.enter_context(client_of(args))
        model = _model_of(client, names)
        conversation = Chat(
            lambda row: client.stream(model, **row, timeout=args.timeout), args.system, parameters
        )
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401 - input() then edits lines, and has those before
            _note(f"{model} at {args.url}; /help, Ctrl-D ends")
        _talk(conversation, is_terminal)
    return 0


def _talk(conversation: Chat, is_terminal: bool) -> None:
    while (line := _next_line(is_terminal)) is not None:
        if line.startswith("/") and is_terminal:
            if line.split()[0] in ("/bye", "/exit", "/quit"):
                return
            _note(conversation.command(line))
        elif line.strip():
            try:
                note = conversation.answer_to(line)
            except WherryError as error:
                if not is_terminal:
                    raise
                note = f"wherry: {error}"
            if is_terminal and note:
                _note(note)


def _next_line(is_terminal: bool) -> str | None:
    try:
        return input("> " if is_terminal else "")
    except EOFError:
        if is_terminal:
            sys.stdout.write("\n")
        return None


def _note(text: str) -> None:
    """What is not the model's, beside it on the terminal."""
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    text = printable(text, keep="\n")
    sys.stderr.write(f"\033[2m{text}\033[0m\n" if dim else f"{text}\n")


@contextmanager
def _served(target: str) -> Iterator[Server]:
    configure("warning")
    models = load_targets([target if is_checkpoint(target) else f"llm:{target}"])
    assert isinstance(models, list)
    server = Server(*models, port=0, isolation="process")
    if sys.stderr.isatty():
        server.start_log = LoadingLine(StatusLine(sys.stderr))
    with server:
        yield server


def _model_of(client: Client, names: Sequence[str]) -> str:
    """The model that is named, or the only one that chats. ConfigError if there is none."""
    if names and chats(client.describe(names[0])):
        return names[0]
    if names:
        raise ConfigError(f"model {names[0]!r} does not chat: wherry call {names[0]} calls it")
    found = sorted({str(entry["name"]) for entry in client.models()})
    found = [name for name in found if chats(client.describe(name))]
    if not found:
        raise ConfigError(f"{client.url} has no model that chats: wherry serve llm:FILE.gguf")
    if len(found) > 1:
        raise ConfigError(f"which model? wherry chat {' | '.join(found)}")
    return found[0]
