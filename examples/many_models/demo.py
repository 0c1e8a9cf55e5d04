"""What do callers of five models see where about two of them fit? `make demo-models` shows it.

Serves app.py in a budget of memory, asks all five in turns and bursts, checks each answer, and
draws which model was loaded when.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import wherry
from examples.ocr.page import LINES, photo
from wherry.testing.servers import ServerProcess

APP, PICTURE = Path(__file__).with_name("app.py"), Path("build/turns.svg")
SPEECH = Path(sys.prefix) / "share/speech/pytest_audioeval/samples/audio/en/counting.wav"
PAGE = photo()
BUDGET, SECONDS = "1500MiB", 40.0
#: The longest burst, and seconds between two requests of it, two bursts, two looks at the states.
BURST, BETWEEN, PAUSE, LOOK = 6, 0.1, 2.0, 0.05
TIMEOUT = 300.0

console = Console(highlight=False)


def sentiment(client: wherry.Client) -> bool:
    answer = client.infer("sentiment", text="A wonderful, heartfelt film.")
    return bool(answer["label"] == "positive")


def embed(client: wherry.Client) -> bool:
    texts = ["I want my money back", "Please refund me", "The cat sleeps in the sun"]
    (first, alike, other) = (client.infer("embed", text=text) for text in texts)
    return bool(first @ alike > first @ other + 0.1)


def page(client: wherry.Client) -> bool:
    """Spaces do not count: the network does not always see where a word ends."""
    lines = client.infer("page", jpeg=PAGE)["lines"]
    return "".join("".join(lines).split()).lower() == "".join("".join(LINES).split()).lower()


def speech(client: wherry.Client) -> bool:
    return bool(client.infer("speech", audio=SPEECH)["share"] > 0.5)


def chat(client: wherry.Client) -> bool:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    limits = {"temperature": 0, "max_tokens": 12}
    answer = client.stream("chat", messages=question, parameters=limits)
    return "Paris" in "".join(piece["text"] for piece in answer)


Call = Callable[[wherry.Client], bool]
CALLS: dict[str, Call] = {one.__name__: one for one in (sentiment, embed, page, speech, chat)}


@dataclass(slots=True)
class Record:
    """One model's requests and states, by seconds of the play."""

    sent: list[float] = field(default_factory=list)
    #: When a request was sent, and when its answer was there.
    answers: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: When each state began.
    states: list[tuple[float, str]] = field(default_factory=list)
    footprint_bytes: int = 0

    def spans(self, end: float) -> list[tuple[str, float, float]]:
        ends = [*(at for at, _ in self.states[1:]), end]
        return [(state, at, to) for (at, state), to in zip(self.states, ends, strict=True)]

    def first_answers(self) -> list[float]:
        """Seconds of the first answer after each sleep."""
        ends = sorted((end, end - sent) for sent, end in self.answers)
        woke = [at for at, state in self.states if state == "waking"]
        return [next((took for end, took in ends if end >= at), inf) for at in woke]


def bursts(seconds: float) -> Iterator[tuple[float, str]]:
    """When which model is called: each in turn, then bursts at random."""
    chance, turns, at = random.Random(5), iter(CALLS), 0.0
    while at < seconds:
        model = next(turns, None) or chance.choice(list(CALLS))
        for number in range(chance.randint(1, BURST)):
            yield at + number * BETWEEN, model
        at += PAUSE * chance.uniform(0.5, 1.5)


def play(client: wherry.Client, seconds: float) -> tuple[dict[str, Record], float]:
    """Call the models as `bursts` says, wait for all answers, and watch the models' states.
    Returns also the seconds that it took."""
    records = {model: Record() for model in CALLS}
    start = time.monotonic()

    def call(model: str, sent: float) -> None:
        try:
            is_right = CALLS[model](client)
        except (OSError, wherry.WherryError) as error:
            records[model].errors.append(str(error))
            return
        records[model].answers.append((sent, time.monotonic() - start))
        if not is_right:
            records[model].errors.append("a wrong answer")

    def look() -> None:
        while not over.wait(LOOK):
            for model, record in records.items():
                found = client.batching(model)["residence"]
                record.footprint_bytes = found["footprint_bytes"]
                if not record.states or record.states[-1][1] != found["state"]:
                    record.states.append((time.monotonic() - start, found["state"]))

    calls, over = sorted(bursts(seconds)), threading.Event()
    with ThreadPoolExecutor(1) as watcher:
        looks = watcher.submit(look)
        try:
            with ThreadPoolExecutor(len(calls)) as callers:
                for at, model in calls:
                    time.sleep(max(0.0, start + at - time.monotonic()))
                    records[model].sent.append(at)
                    callers.submit(call, model, at)
        finally:
            over.set()
        looks.result()
    return records, time.monotonic() - start


def show(records: dict[str, Record], end: float) -> None:
    table = Table(title=f"five models in {BUDGET}", box=None, pad_edge=False)
    table.add_column("model")
    for column in ("MiB", "requests", "wakes", "s waking", "first answer p50 s", "lost"):
        table.add_column(column, justify="right")
    for model, record in records.items():
        waking = [to - at for state, at, to in record.spans(end) if state == "waking"]
        lost, firsts = len(record.sent) - len(record.answers), record.first_answers()
        table.add_row(
            model, f"{record.footprint_bytes / 2**20:.0f}", str(len(record.sent)),
            str(len(waking)), f"{sum(waking):.1f}", f"{median(firsts):.2f}" if firsts else "-",
            str(lost),
        )  # fmt: skip
    console.print(table)


WIDTH, LEFT, TOP, ROW = 900, 90, 44, 40
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937; }
.asleep { fill: #e5e7eb; } .waking { fill: #f59e0b; } .ready, .stopping { fill: #60a5fa; }
.request { fill: #111827; fill-opacity: 0.6; }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb; } .asleep { fill: #374151; } .waking { fill: #d97706; }
  .ready, .stopping { fill: #2563eb; } .request { fill: #f9fafb; }
}
"""


def drawn(records: dict[str, Record], end: float) -> str:
    """As SVG: a row for each model, its states as bars, its requests as dots."""
    scale, height = (WIDTH - LEFT - 40) / end, TOP + ROW * len(records) + 24
    shapes = [_text(20, 24, f"Five models in {BUDGET}"), _text(WIDTH - 80, 24, "● a request")]
    for number, state in enumerate(("asleep", "waking", "ready")):
        x = WIDTH - 320 + 80 * number
        shapes += [_bar(state, x, 14, 12, 12), _text(x + 17, 24, state)]
    for y, (model, record) in zip(range(TOP, height, ROW), records.items(), strict=False):
        shapes.append(_text(20, y + 18, model))
        for state, at, to in record.spans(end):
            shapes.append(_bar(state, LEFT + at * scale, y, (to - at) * scale, 28))
        for at in record.sent:
            middle = f'cx="{LEFT + at * scale:.1f}" cy="{y + 14}"'
            shapes.append(f'<circle class="request" {middle} r="3"/>')
    for second in range(0, int(end) + 1, 5 if end < 60 else 20):
        shapes.append(_text(LEFT + second * scale, height - 10, f"{second} s"))
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>'
    return "\n".join([head, *shapes, "</svg>", ""])


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}">{text}</text>'


def _bar(state: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{state}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"/>'


def main(arguments: Sequence[str]) -> int:
    seconds = float(arguments[0]) if arguments else SECONDS
    picture = Path(arguments[1]) if len(arguments) > 1 else PICTURE
    # On a busy machine the last of them waits for longer than the 30 s of a server's default.
    settings = ("--device-memory", f"cpu={BUDGET}", "--max-queue-wait", str(TIMEOUT))
    with (
        ServerProcess(str(APP), *settings, ready_timeout=TIMEOUT, own_group=True) as server,
        wherry.Client(server.url, timeout=TIMEOUT) as client,
    ):
        console.print("[dim]each model once, to measure it (the first time: minutes)[/dim]")
        for call in CALLS.values():
            call(client)
        console.print(f"[dim]all five, for {seconds:.0f} s[/dim]\n")
        records, end = play(client, seconds)
    show(records, end)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(drawn(records, end), "utf-8")
    console.print(f"\nwhich model was loaded when: {picture}")
    errors = [f"{model}: {error}" for model, one in records.items() for error in one.errors]
    console.print("\n".join(errors), style="red", end="")
    return 1 if errors else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
