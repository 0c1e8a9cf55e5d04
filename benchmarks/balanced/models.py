"""What each host serves: a simulated device that can be slow, and can fail.

HOST: its name. EXECUTED: the file with a line for each row that was begun. SLOWNESS: how many times
slower it is. FAILS: while this file exists, each batch fails at once. MAX_BATCH: of `work`.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import wherry

HOST = os.environ["HOST"]
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
#: What a batch takes, seconds, and each of its rows.
BATCH, ROW = 0.04, 0.002
executed = os.open(os.environ["EXECUTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def run(ids: list[str]) -> list[str]:
    os.write(executed, "".join(f"{one}\n" for one in ids).encode())
    if Path(os.environ["FAILS"]).exists():
        raise RuntimeError("this host fails")
    time.sleep(SLOWNESS * (BATCH + ROW * len(ids)))
    return [f"{HOST} {one}" for one in ids]


@wherry.model(max_batch_size=int(os.environ.get("MAX_BATCH", "32")))
def work(id: list[str]) -> list[str]:
    return run(id)


@wherry.model(max_batch_size=32, run_again=False)
def once(id: list[str]) -> list[str]:
    return run(id)


@wherry.model(instances=4)
def words(id: str) -> Iterator[str]:
    os.write(executed, f"{id}\n".encode())
    for _ in range(20):
        time.sleep(0.05)
        yield f"{HOST} {id}"
