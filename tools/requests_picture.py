"""Which picture shows how requests become batches?

    python -m tools.requests_picture [FILE]

Serves a model on two instances, lets clients call it, and draws what the server has recorded of a
moment as an SVG that moves, light or dark as its reader's screen: docs/requests.svg. It is the
recording of what the dashboard shows live.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import urlopen

import wherry
from wherry.testing.servers import local_server

CLIENTS: Final = 26
#: Seconds of the picture, and those in which a request of median length is answered in it.
LONG, MEDIAN = 10.0, 2.2
WIDE, QUEUE_END, LANE, LANE_END = 700, 236, 290, 610
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #51606f }
.track { fill: #eef2f5; stroke: #d5dbe1 }
.d0 { fill: #0b7285 } .d1 { fill: #a25c00 } .d2 { fill: #b3261e } .d3 { fill: #6741a8 }
@media (prefers-color-scheme: dark) {
  text { fill: #a0aebc } .track { fill: #10161c; stroke: #2c3742 }
  .d0 { fill: #5cc8d5 } .d1 { fill: #e9ae55 } .d2 { fill: #ff8f84 } .d3 { fill: #b79bf0 }
}
circle { animation: LONGs linear infinite; opacity: 0 }
@media (prefers-reduced-motion: reduce) {
  circle { animation-play-state: paused; animation-delay: -HALFs }
}
"""


@wherry.model(max_batch_size=8, instances=2, isolation="thread", max_queue_delay=0.006)
def classify(text: list[str]) -> list[str]:
    time.sleep(0.016 + 0.003 * len(text))
    return text


@dataclass(frozen=True, slots=True)
class Dot:
    """One request; times are seconds of the picture."""

    came: float
    starts: float
    leaves: float
    lane: int
    batch: int
    place: int
    mates: int


def dots(batches: Sequence[dict[str, Any]]) -> tuple[list[Dot], list[str], float]:
    """The requests of these batches, the names of their instances, and how much slower the picture
    is than they were."""
    batches = [one for one in batches if one["instance"]]
    lanes = sorted({one["instance"] for one in batches})
    took = median(one["ended"] - came for one in batches for _, came, _ in one["requests"])
    slow = MEDIAN / took
    begin = min(came for _, came, _ in batches[0]["requests"])
    found = []
    for number, one in enumerate(batches):
        ends = one["started"] + one["input_seconds"] + one["infer_seconds"]
        starts, ends = (one["started"] - begin) * slow, (ends - begin) * slow
        leaves = max(ends, (one["ended"] - begin) * slow)
        for place, (_, came, _) in enumerate(one["requests"]):
            lane, mates = lanes.index(one["instance"]), len(one["requests"])
            dot = Dot((came - begin) * slow, starts, leaves, lane, number % 4, place, mates)
            if dot.came >= 0.2 and dot.leaves < LONG - 0.5:
                found.append(dot)
    return sorted(found, key=lambda one: one.came), lanes, slow


def lane_at(lane: int) -> float:
    return 44 + 72 * lane


def path(dot: Dot, others: Sequence[Dot]) -> Iterator[tuple[float, float, float, int]]:
    """Where it is when, and whether it can be seen: straight lines between these moments."""

    def waits(at: float) -> tuple[float, float]:
        before = sum(one.came < dot.came and one.starts > at for one in others)
        return QUEUE_END - 13 * (before % 15), lane_at(0) + 13 * (before // 15)

    yield dot.came - 0.15, -8, lane_at(0), 0
    yield dot.came, *waits(dot.came), 1
    for moment in sorted({one.starts for one in others if dot.came < one.starts < dot.starts}):
        yield moment, *waits(moment - 1e-6), 1
        yield moment + 0.12, *waits(moment), 1
    rows = min(4, dot.mates)
    across, down = 11 * (dot.place // 4), 11 * (dot.place % 4 - (rows - 1) / 2)
    y, width = lane_at(dot.lane) + down, 11 * ((dot.mates - 1) // 4)
    yield max(dot.came, dot.starts), *waits(dot.starts - 1e-6), 1
    yield dot.starts + 0.15, LANE + across, y, 1
    yield dot.leaves, LANE_END - width + across, y, 1
    yield dot.leaves + 0.4, WIDE + 10, y, 0


def picture(batches: Sequence[dict[str, Any]]) -> str:
    """The SVG of these batches."""
    found, lanes, slow = dots(batches)
    keyframes, circles = [], []
    for number, dot in enumerate(found):
        moments: dict[str, str] = {}
        for at, x, y, seen in path(dot, found):
            share = f"{100 * min(LONG, max(0.0, at)) / LONG:.2f}%"
            moments[share] = f"{{transform:translate({x:.0f}px,{y:.0f}px);opacity:{seen}}}"
        ordered = sorted(moments.items(), key=lambda one: float(one[0][:-1]))
        whole = [("0%", ordered[0][1]), *ordered, ("100%", ordered[-1][1])]
        keyframes.append(f"@keyframes k{number}{{{''.join(at + where for at, where in whole)}}}")
        circles.append(f'<circle r="5" class="d{dot.batch}" style="animation-name:k{number}"/>')
    high = lane_at(len(lanes) - 1) + 34
    tracks = [
        f'<rect class="track" x="{LANE - 12}" y="{lane_at(lane) - 25:.0f}" rx="8"'
        f' width="{LANE_END - LANE + 24}" height="50"/>'
        f'<text x="{LANE - 8}" y="{lane_at(lane) - 30:.0f}">{name}</text>'
        for lane, name in enumerate(lanes)
    ]
    style = STYLE.replace("LONG", f"{LONG:g}").replace("HALF", f"{LONG / 2:g}")
    count = len({(one.starts, one.lane) for one in found})
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high:.0f}" role="img">',
            f"<title>{len(found)} requests in {count} batches on {len(lanes)} instances, slowed"
            f" down {slow:.0f} times</title>",
            f"<style>{style}{''.join(keyframes)}</style>",
            f'<text x="{QUEUE_END}" y="14" text-anchor="end">requests wait</text>',
            f'<text x="{WIDE - 4}" y="14" text-anchor="end">answered</text>',
            *tracks,
            *circles,
            "</svg>\n",
        ]
    )


@contextmanager
def called(client: Callable[[], wherry.Client]) -> Iterator[None]:
    """Clients that call again, each after a pause of its own, until the end of the block."""
    ends = threading.Event()

    def call(number: int) -> None:
        pauses = random.Random(number)
        with client() as one:
            while not ends.wait(pauses.expovariate(60)):
                one.infer("classify", text="a lovely day")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def recorded() -> list[dict[str, Any]]:
    """Batches of a server that is called, as it has recorded them."""
    with local_server(classify) as server, called(lambda: wherry.Client(server.url)):
        found: list[dict[str, Any]] = []
        while len(found) < 80:  # the first question begins the recording
            time.sleep(0.5)
            with urlopen(f"{server.url}/dashboard/requests") as answer:
                found = json.load(answer)["batches"]
    return found[-60:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="docs/requests.svg", type=Path)
    parser.parse_args().file.write_text(picture(recorded()))


if __name__ == "__main__":
    main()
