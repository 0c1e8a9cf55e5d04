"""Fuzz the parsers, guided by which code an input reaches (`make test-long`; needs atheris).

    python -m tests.fuzz [--seconds 30] [TARGET...]

Each target runs in a process of its own for so many seconds. An input that is a find is written
to `.fuzz/`, with what it raised on stderr; then the exit code is 1.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

FINDS = Path(".fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=30, help="of each target [30]")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        _fuzz(args.one, args.corpus, args.seconds)
    from tests.fuzz.targets import TARGETS

    FINDS.mkdir(exist_ok=True)
    found = []
    for name in args.targets or TARGETS:
        print(f"==> {name}", flush=True)
        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(TARGETS[name].seeds):
                (Path(corpus) / f"seed-{number}").write_bytes(seed)
            command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--corpus", corpus]
            if subprocess.run([*command, "--seconds", str(args.seconds)], check=False).returncode:
                found.append(name)
    print(f"finds: {', '.join(found) or 'none'}")
    return 1 if found else 0


def _fuzz(name: str, corpus: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["wherry"]):
        from tests.fuzz.targets import TARGETS, check
    target = TARGETS[name]
    atheris.Setup(
        [
            "fuzz", corpus, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20",
            f"-artifact_prefix={FINDS}/{name}-", "-verbosity=0", "-print_final_stats=1",
        ],
        lambda data: check(target, data),
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
