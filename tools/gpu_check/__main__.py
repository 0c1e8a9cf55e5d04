"""Check a machine's GPU: is it ready, what does it give, and does wherry give it on?

    make gpu
    sh tools/gpu_check/run.sh --out FOLDER --seconds 400     # on a bare machine: see wheels.sh
    python -m tools.gpu_check --cpu [--parts machine,decode]   # a dry run with tiny models
    python -m tools.gpu_check --page       # the page of the run in benchmarks/results/gpu.json

A part that fails, or takes longer than it may, is recorded as such, and the rest goes on. FOLDER
has gpu.json, gpu.md and log.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.gpu_check.parts import PARTS
from tools.gpu_check.report import PAGE, ROOT, page, table

#: Seconds below which a part is not begun.
LEAST = 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="[%(default)s]")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), metavar="A,B",
                        help=f"of {','.join(PARTS)} [all]")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=400.0, help="for all parts [400]")
    parser.add_argument("--cpu", action="store_true", help="a dry run with tiny models")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    findings = out / "findings.jsonl"
    findings.unlink(missing_ok=True)
    findings.touch()
    (out / "log.txt").write_text("")
    ends, parts = time.monotonic() + options.seconds, []
    for name in options.parts:
        parts.append(_run(name, ends - time.monotonic(), out, small=options.cpu))
        document = _document(options, findings, parts)
        (out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
        (out / "gpu.md").write_text(text := table(document))
    print(text)
    return 0 if all(part["end"] == "done" for part in parts) else 1


def _parts(given: str) -> list[str]:
    names = given.split(",")
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}")
    return names


def run_part(name: str) -> None:
    PARTS[name][0]()


def _run(name: str, left: float, out: Path, *, small: bool) -> dict[str, Any]:
    """Run a part in a process group of its own, for the seconds that it may take."""
    box = min(PARTS[name][1] * (4 if small else 1), left)
    if box < LEAST:
        return {"part": name, "seconds": 0, "end": "left out: no time"}
    given = {"GPU_CHECK_OUT": str(out), "GPU_CHECK_PART": name, "HF_HUB_OFFLINE": "1"}
    if small:
        given |= {"GPU_CHECK_SMALL": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    program = f"from tools.gpu_check.__main__ import run_part; run_part({name!r})"
    began = time.monotonic()
    with (out / "log.txt").open("a") as log:
        print(f"\n===== {name}", file=log, flush=True)
        process = subprocess.Popen(
            [sys.executable, "-c", program], env={**os.environ, **given}, cwd=ROOT,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(box)
            end = "done" if code == 0 else f"failed: it ended with {code}"
        except subprocess.TimeoutExpired:
            end = f"ended after its {box:.0f} seconds"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    took = round(time.monotonic() - began)
    print(f"{name}: {took} s, {end}", file=sys.stderr, flush=True)
    return {"part": name, "seconds": took, "end": end}


def _document(
    options: argparse.Namespace, findings: Path, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    given = ["--cpu"] * options.cpu
    if options.parts != list(PARTS):
        given.append(f"--parts {','.join(options.parts)}")
    return {
        "command": " ".join(["sh tools/gpu_check/run.sh", *given]),
        "dry_run": options.cpu,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "commit": _output("git", "rev-parse", "--short", "HEAD") or "unknown",
        "machine": _machine(),
        "parts": parts,
        "findings": [json.loads(line) for line in findings.read_text().splitlines()],
    }


def _machine() -> dict[str, str]:
    asked = "--query-gpu=name,driver_version,memory.total"
    found = {
        "GPU": _output("nvidia-smi", asked, "--format=csv,noheader") or "none",
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
    }
    for package in ("torch", "transformers", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
