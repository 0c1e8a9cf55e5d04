"""Reports as a run would make them, with figures that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wherry.bench.answers import AnswerReader
from wherry.bench.figures import Figures, Interval, spread
from wherry.bench.observe import ServerSide
from wherry.bench.plan import Closed
from wherry.bench.report import ClientSide, Point, Report, TargetFacts


def point(
    rate: float = 100.0,
    latency: float = 0.01,
    *,
    noise: float = 0.02,
    seed: int = 0,
    repeat: int = 0,
    pieces: int = 20,
    cores: float | None = 0.5,
    **settings: Any,
) -> Point:
    """A run whose pieces lie around `rate` and `latency` with this much noise."""
    draw = np.random.default_rng(seed)

    def around(value: float) -> float:
        return float(value * (1 + noise * draw.standard_normal()))

    timeline = [
        Interval(
            at=n * 0.5,
            seconds=0.5,
            requests_per_second=around(rate),
            rows_per_second=around(rate),
            tokens_out_per_second=0.0,
            failed=0,
            in_flight=4,
            mean=around(latency),
            p50=around(latency),
            p95=around(2 * latency),
            p99=around(3 * latency),
            warmup=n < 2,
        )
        for n in range(pieces)
    ]
    measured = [piece for piece in timeline if not piece.warmup]
    values = np.array([piece.p50 for piece in measured] or [latency])
    return Point(
        settings={"callers": 4, **settings},
        repeat=repeat,
        load=Closed(callers=4),
        figures=Figures(
            seconds=10.0,
            ok=1000,
            failed=0,
            errors={},
            requests_per_second=float(np.mean([p.requests_per_second for p in measured] or [rate])),
            rows_per_second=rate,
            latency=spread(values),
        ),
        timeline=timeline,
        server=ServerSide(
            requests=1000, rows=1000, executions=250, queue=0.001, compute_infer=0.005,
            mean_batch_size=4.0, batch_sizes={4: 250},
        ),
        server_cores=cores,
        client=ClientSide(processes=1, cores=0.1, busiest=0.1),
    )  # fmt: skip


def answer(
    first: float, tokens_in: int = 0, tokens_out: int = 0, gaps: Sequence[float] = ()
) -> AnswerReader:
    """What was read of an answer."""
    made = AnswerReader()
    made.first, made.tokens_in, made.tokens_out, made.gaps = first, tokens_in, tokens_out, [*gaps]
    return made


def report(*points: Point) -> Report:
    return Report(
        version="0",
        started="2026-01-01T00:00:00+00:00",
        command=["wherry", "bench"],
        target=TargetFacts(protocol="infer", url="http://x", model="m"),
        points=list(points),
    )
