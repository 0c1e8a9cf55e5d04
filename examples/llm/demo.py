"""What is it like to talk to a model that sixteen others talk to as well? `make demo-llm` shows it.

Serves app.py. In a terminal you may chat with it first; without one it has three questions of its
own. Then sixteen conversations at once, and how fast each of them was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import wherry
from wherry.testing.servers import ServerProcess

APP = Path(__file__).with_name("app.py")
STREAMS, TOKENS, TURN_TOKENS = 16, 32, 48
#: The first start turns the file's 4 bit weights into float32 ones, and keeps them.
READY_TIMEOUT = 900.0
QUESTIONS = (
    "What is the capital of France?",
    "What can one see there?",
    "Write a short rhyme about that city.",
)
TOPICS = (
    "rivers", "bread", "the moon", "bicycles", "whales", "glass", "tea", "bridges",
    "clocks", "salt", "birds", "maps", "winter", "paper", "honey", "trains",
)  # fmt: skip

console = Console(highlight=False)


@dataclass(slots=True)
class Stream:
    """One answer as it came: when its first token was there, and how many there were."""

    text: str = ""
    tokens: int = 0
    first_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / max(self.seconds - self.first_seconds, 1e-9)


def ask(
    client: wherry.Client, messages: list[dict[str, str]], answer: Stream, **parameters: Any
) -> Iterator[str]:
    """The pieces of an answer, which `answer` keeps the account of."""
    start = time.perf_counter()
    for delta in client.stream("chat", messages=messages, parameters=parameters):
        answer.seconds = time.perf_counter() - start
        answer.first_seconds = answer.first_seconds or answer.seconds
        answer.tokens = delta["usage"].get("completion_tokens", 0)  # the last piece says it
        answer.text += delta["text"]
        yield delta["text"]


def turn(client: wherry.Client, conversation: list[dict[str, str]], question: str) -> None:
    """Put a question, print the answer while it comes, and remember both."""
    conversation.append({"role": "user", "content": question})
    answer = Stream()
    for text in ask(client, conversation, answer, temperature=0, max_tokens=TURN_TOKENS):
        console.print(text, end="", markup=False, soft_wrap=True)
    console.print(f"\n[dim]{answer.tokens} tokens, {answer.rate:.0f} tokens/s[/dim]\n")
    conversation.append({"role": "assistant", "content": answer.text})


def chat(client: wherry.Client) -> None:
    """In a terminal its questions, else three of ours."""
    conversation: list[dict[str, str]] = []
    if not sys.stdin.isatty():
        for question in QUESTIONS:
            console.print(f"[bold]> {question}[/bold]")
            turn(client, conversation, question)
        return
    console.print("Say something; an empty line ends the chat.\n")
    while question := prompted():
        turn(client, conversation, question)


def prompted() -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except EOFError:
        return ""


def together(client: wherry.Client) -> tuple[list[Stream], float]:
    """Sixteen answers at the same time, and the seconds that all of them took."""

    def one(topic: str) -> Stream:
        answer = Stream()
        question = {"role": "user", "content": f"Tell me something about {topic}."}
        wishes = {"temperature": 0.7, "seed": 1, "max_tokens": TOKENS, "ignore_eos": True}
        for _ in ask(client, [question], answer, **wishes):
            pass
        return answer

    with ThreadPoolExecutor(STREAMS) as pool:
        start = time.perf_counter()
        answers = list(pool.map(one, TOPICS))
        return answers, time.perf_counter() - start


def show(answers: list[Stream], seconds: float) -> None:
    table = Table(title=f"{len(answers)} streams at once", box=None, pad_edge=False)
    for column in ("about", "first token ms", "tokens", "tokens/s"):
        table.add_column(column, justify="left" if column == "about" else "right")
    table.add_column("it says")
    room = console.width - 46
    for topic, answer in zip(TOPICS, answers, strict=True):
        text = " ".join(answer.text.split())[:room]
        table.add_row(
            topic,
            f"{1000 * answer.first_seconds:.0f}",
            str(answer.tokens),
            f"{answer.rate:.1f}",
            text,
        )
    console.print(table)
    tokens = sum(answer.tokens for answer in answers)
    console.print(
        f"\nall together: {tokens} tokens in {seconds:.1f} s, [bold]{tokens / seconds:.0f}"
        f" tokens/s[/bold]; each {median(answer.rate for answer in answers):.1f} tokens/s"
    )


def main() -> None:
    console.print("[dim]loading SmolLM2-135M-Instruct (the first time: about a minute)[/dim]\n")
    with (
        ServerProcess(str(APP), ready_timeout=READY_TIMEOUT, own_group=True) as server,
        wherry.Client(server.url) as client,
    ):
        chat(client)
        show(*together(client))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
