"""What does `wherry bench` take? (Flags only: this is read for --help.)"""

from __future__ import annotations

import argparse

EPILOG = """\
Seconds may be written 200ms, 5s or 2m; several values of a sweep 1,4,16 or 1..64 (doubling).
TARGET is a URL, or what `wherry serve` takes: then the server is started (and, with --set,
started again), or with --local called in this process. Without TARGET: WHERRY_URL.
"""


def add_flags(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "target", nargs="?", metavar="TARGET", help="a URL, or app.py, or module:object"
    )
    what = to.add_argument_group("what is sent")
    what.add_argument("--model", metavar="NAME", help="name, or name:version")
    what.add_argument(
        "--protocol",
        choices=("infer", "generate", "generate_stream", "chat", "completions", "embeddings",
                 "http", "grpc"),
        help="by default what the URL's path or the server says",
    )  # fmt: skip
    what.add_argument("--local", action="store_true", help="in this process, without a server")
    what.add_argument(
        "--inputs", metavar="PATH", help="rows: a JSONL or text file, or file.py:function"
    )
    what.add_argument("--rows", default="1", metavar="N,..", help="rows of each request [1]")
    what.add_argument(
        "--length",
        action="append",
        default=[],
        metavar="L",
        help="texts are made up: 300, 100-800, 5-120w, normal:300,80 (several: --offline)",
    )
    what.add_argument(
        "--shape", action="append", default=[], metavar="NAME=N,..",
        help="a row's shape, for tensors that are made up",
    )  # fmt: skip
    what.add_argument(
        "--json-tensors", action="store_true", help="V2: numbers as JSON, not as binary tensors"
    )
    what.add_argument("--max-tokens", type=int, default=128, metavar="N", help="OpenAI [128]")
    what.add_argument("--no-stream", action="store_true", help="OpenAI: whole answers")
    what.add_argument("--method", metavar="METHOD", help="of a plain URL [GET, POST with a body]")
    what.add_argument("--body", metavar="TEXT", help="of a plain URL; @PATH reads it from a file")
    what.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="one more header"
    )
    what.add_argument("--api-key", metavar="KEY", help="bearer key, or WHERRY_API_KEY")
    what.add_argument("--ssl-ca", metavar="PATH", help="CA certificates to trust")
    what.add_argument("--insecure", action="store_true", help="accept any certificate")

    load = to.add_argument_group("load (closed: callers wait for their answers; open: a rate)")
    load.add_argument("--callers", metavar="N,..", help="callers at once [1,4,16,64]")
    load.add_argument("--think", metavar="SECONDS", help="a caller's pause before its next request")
    load.add_argument("--think-random", action="store_true", help="exponential around --think")
    load.add_argument(
        "--ramp", metavar="SECONDS", help="callers join, or the rate grows, over this time"
    )
    load.add_argument("--rate", metavar="R,..", help="requests/s, however long answers take")
    load.add_argument(
        "--arrivals", choices=("poisson", "constant"), default="poisson", help="[poisson]"
    )
    load.add_argument("--burst", metavar="N/SECONDS", help="N requests at once, every so often")
    load.add_argument("--replay", metavar="PATH", help="a trace: one moment (seconds) a line")
    load.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="of the replay: 2 is twice as fast"
    )
    load.add_argument("--duration", metavar="SECONDS", help="of each run [5s]")
    load.add_argument("--requests", type=int, metavar="N", help="end after so many in all")
    load.add_argument("--loops", type=int, metavar="N", help="end after so many of each caller")
    load.add_argument(
        "--warmup", metavar="SECONDS", help="not measured [1s, 0 with --requests or --loops]"
    )
    load.add_argument("--timeout", default="30s", metavar="SECONDS", help="of a request [30s]")
    load.add_argument(
        "--repeat", type=int, metavar="N",
        help="runs of each point [1, or 10 of each target with --compare]",
    )  # fmt: skip
    load.add_argument("--pause", default="0", metavar="SECONDS", help="between two runs [0]")
    load.add_argument("--processes", type=int, default=1, metavar="N", help="load processes [1]")
    load.add_argument(
        "--connections", type=int, default=1000, metavar="N", help="of an open load, at most [1000]"
    )
    load.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random [0]")

    server = to.add_argument_group("the server, where TARGET is app.py")
    server.add_argument(
        "--set", action="append", default=[], metavar="NAME=V,..",
        help="a model setting to sweep: max_batch_size=8,32, max_queue_delay=0,5ms, instances=1,2",
    )  # fmt: skip
    server.add_argument(
        "--serve", action="append", default=[], metavar="FLAG",
        help="a flag for `wherry serve`: --serve=--isolation=thread",
    )  # fmt: skip

    search = to.add_argument_group("thresholds (exit code 1 where one is missed), and search")
    for quantile in ("p50", "p95", "p99"):
        search.add_argument(f"--{quantile}", metavar="SECONDS", help=f"{quantile} at most")
    search.add_argument(
        "--max-errors", metavar="SHARE", help="failed requests at most [1%% with --find-max]"
    )
    search.add_argument(
        "--find-max", nargs="?", const="callers", choices=("callers", "rate"),
        help="the highest load that meets these thresholds",
    )  # fmt: skip

    other = to.add_argument_group("other modes")
    other.add_argument(
        "--compare", nargs=2, metavar=("A", "B"),
        help="two targets, measured in turns, or two reports: what differs beyond noise",
    )  # fmt: skip
    other.add_argument(
        "--offline", action="store_true",
        help="no callers: seconds per row over batch sizes and lengths, in this process",
    )  # fmt: skip
    other.add_argument("--batch-sizes", default="1..64", metavar="N,..", help="offline [1..64]")

    out = to.add_argument_group("results (the table goes to stdout)")
    out.add_argument("--json", metavar="PATH", help="the report, for --compare and programs")
    out.add_argument("--html", metavar="PATH", help="the report as one page with charts")
    out.add_argument("--csv", metavar="PATH", help="a line for each point")
    out.add_argument("--jsonl", metavar="PATH", help="a line for each request")
    out.add_argument("--quiet", action="store_true", help="nothing meanwhile, on stderr")
