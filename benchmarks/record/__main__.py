"""Record every figure of the documentation again, in one go, at one commit.

    python -m benchmarks.record --triton TRITON/bin/python --mosec MOSEC/bin/python
        --vllm VLLM/bin/python --transformers TRANSFORMERS/bin/python
        [--minutes 60] [--only NAME,.. [--alone]] [--without NAME,..] [--again] [--short] [--list]

`--list` says what is recorded, by which command, and how long it takes. A tree with changes is
refused, as is a machine that lacks something, unless `--without` names the entry. One that fails or
takes three times its time is named at the end. What has been measured at this commit is in
build/record/COMMIT and is not measured again without `--again`. At the end the files of
benchmarks/results are replaced, those that no entry writes are deleted, and the pages that show
them are written. After a change that concerns a few entries, `--only NAME,.. --alone` replaces
their files, and leaves the others as they are, of their commit. `--short` looks in some minutes
whether each command runs, and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import pages
from benchmarks.harness import ROOT, busy_seconds, commit, facts
from benchmarks.record.plan import ENTRIES, GPU, PEERS, Entry, lacking

RESULTS: Final = ROOT / "benchmarks" / "results"
#: About the whole: machine, commit, how long each took, and what is missing.
SUMMARY: Final = "recorded.json"
#: So many times its minutes an entry may take, and so many seconds more.
TIME_LIMIT: Final = (3.0, 60.0)


def main() -> int:
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # what runs ends with us
        signal.signal(number, signal.default_int_handler)
    entries = chosen(options.only, options.without)
    if options.list:
        listed(entries)
        return 0
    peers = {name: path for name in PEERS if (path := getattr(options, name))}
    at = commit(ROOT)
    for entry in entries:
        if why := lacking(entry, peers):
            raise SystemExit(f"{entry.name} needs {why}; or: --without {entry.name}")
    if not options.short and changed():
        raise SystemExit(f"the tree has changes, its figures would be of no commit: {changed()}")
    folder = ROOT / "build" / "record" / ("short" if options.short else at.removesuffix("-dirty"))
    folder.mkdir(parents=True, exist_ok=True)
    run = Recording(folder, peers, options.short, time.monotonic() + 60 * options.minutes)
    with Foreign() as foreign:
        run.all(entries, again=options.again or options.short)
    for name, why in run.missing.items():
        print(f"missing: {name}: {why}")
    if not options.short:
        if commit(ROOT).removesuffix("-dirty") != at.removesuffix("-dirty") or changed():
            raise SystemExit("the tree was changed meanwhile: nothing is kept")
        if options.alone:
            kept_alone(folder, at.removesuffix("-dirty"), entries)
        else:
            kept(folder, at.removesuffix("-dirty"), run.missing, foreign.cores)
        pages.write()
        print(f"{RESULTS.relative_to(ROOT)} and the pages are of {at.removesuffix('-dirty')} now")
    return 1 if run.missing else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name, what in PEERS.items():
        add(f"--{name}", metavar="PYTHON", help=f"of an environment with {what}")
    add("--minutes", type=float, default=60, help="for all; what is left over is missing [60]")
    add("--only", default="", help="these entries; files of the others stay if of this commit")
    add("--alone", action="store_true", help="with --only: files of the others stay in any case")
    add("--without", default="", help="entries that are left out, and whose files are deleted")
    add("--again", action="store_true", help="also what has been measured at this commit")
    add("--short", action="store_true", help="only see whether each command runs")
    add("--list", action="store_true", help="what is recorded, and how long it takes")
    return parser.parse_args()


def chosen(only: str, without: str) -> list[Entry]:
    known = {entry.name for entry in ENTRIES}
    named, left_out = ({*filter(None, given.split(","))} for given in (only, without))
    if unknown := (named | left_out) - known:
        raise SystemExit(f"no entry {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [e for e in ENTRIES if e.name not in left_out and (not named or e.name in named)]


def listed(entries: Sequence[Entry]) -> None:
    for entry in entries:
        print(f"{entry.minutes:5.1f} min  {entry.told}")
    in_turn = sum(entry.minutes for entry in entries if not entry.untimed)
    beside = sum(entry.minutes for entry in entries if entry.untimed)
    print(f"{in_turn + beside / (os.cpu_count() or 1):5.1f} min  in all, about")


def changed() -> str:
    """Files with changes that are not ours to write, a few of them."""
    told = subprocess.run(
        ["git", "status", "--porcelain"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    ours = {str(path.relative_to(ROOT)) for path in pages.written()}
    found = [line[3:] for line in told]
    results = f"{RESULTS.relative_to(ROOT)}/"
    return ", ".join([f for f in found if f not in ours and not f.startswith(results)][:5])


@dataclass(slots=True)
class Recording:
    """The runs of one command; `missing` says which entries have no figures, and why."""

    folder: Path
    peers: Mapping[str, str]
    short: bool
    #: When its time is over, by time.monotonic().
    until: float
    missing: dict[str, str] = field(default_factory=dict)

    def all(self, entries: Iterable[Entry], *, again: bool) -> None:
        """Run what is not there: untimed ones side by side, then measured ones alone."""
        left = [entry for entry in entries if again or not self.path(entry).exists()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.one, [entry for entry in left if entry.untimed]))
        for entry in left:
            if not entry.untimed:
                self.one(entry)

    def path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.name}.json"

    def one(self, entry: Entry) -> None:
        began, path = time.monotonic(), self.path(entry)
        limit = min(TIME_LIMIT[0] * 60 * entry.minutes + TIME_LIMIT[1], self.until - began)
        if limit <= 0:
            self.missing[entry.name] = "no time was left"
            return
        print(f"{entry.name} ...", flush=True)
        path.unlink(missing_ok=True)
        command = entry.run_by(sys.executable, self.peers, path, short=self.short)
        with path.with_suffix(".log").open("w") as log:
            code = _within(command, limit, log)
        seconds = time.monotonic() - began
        if code or not path.exists():
            why = f"it was ended after {limit:.0f} s" if code is None else f"it ended with {code}"
            last = path.with_suffix(".log").read_text().strip().splitlines()[-1:]
            self.missing[entry.name] = f"{why}: {''.join(last)[-200:]}"
            path.unlink(missing_ok=True)
            return
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "seconds": round(seconds, 1)}))
        print(f"{entry.name}: {seconds:.0f} s, expected {60 * entry.minutes:.0f}", flush=True)


def _within(command: Sequence[str], limit: float, log: Any) -> int | None:
    """The exit code, or None if it and all its processes had to be ended."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


class Foreign:
    """How many cores other programs took in a block, on average."""

    def __enter__(self) -> Foreign:
        self._began = self._now()
        return self

    def __exit__(self, *exc: object) -> None:
        wall, busy, own = (now - then for now, then in zip(self._now(), self._began, strict=True))
        self.cores = max(0.0, busy - own) / wall

    @staticmethod
    def _now() -> tuple[float, float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = used.ru_utime + used.ru_stime + time.process_time()
        return time.monotonic(), busy_seconds(), own


def kept(folder: Path, at: str, missing: dict[str, str], foreign: float) -> None:
    """Replace the results by those of the folder."""
    for old in RESULTS.glob("*.json"):
        if old.name != GPU:
            old.unlink()
    took: dict[str, float] = {}
    for entry in ENTRIES:
        path = folder / f"{entry.name}.json"
        if not path.exists():
            missing.setdefault(entry.name, "left out")
            continue
        took[entry.name] = _keep(entry, path, at)
    summary = {
        **facts(),
        "commit": at,
        "command": "python -m benchmarks.record",
        "foreign": round(foreign, 2),
        "seconds": took,
        "missing": missing,
    }
    (RESULTS / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")


def kept_alone(folder: Path, at: str, entries: Iterable[Entry]) -> None:
    """Replace the results of these entries, as far as they are in the folder. The summary says of
    which commit they are."""
    summary = json.loads((RESULTS / SUMMARY).read_text())
    for entry in entries:
        path = folder / f"{entry.name}.json"
        if path.exists():
            summary["seconds"][entry.name] = _keep(entry, path, at)
            summary.setdefault("alone", {})[entry.name] = at
            summary["missing"].pop(entry.name, None)
    (RESULTS / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")


def _keep(entry: Entry, path: Path, at: str) -> float:
    """Copy an entry's figures to the results. Returns the seconds that they took."""
    record: dict[str, Any] = json.loads(path.read_text())
    record |= {"commit": at, "command": entry.told}
    (RESULTS / path.name).write_text(lines_of(record))
    seconds: float = record["seconds"]
    return seconds


def lines_of(record: dict[str, Any]) -> str:
    """As JSON, a line for each row."""
    parts = []
    for name, value in record.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
