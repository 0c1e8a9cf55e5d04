"""`wherry` with fronts that do not look at prompts when they choose an owner.

python -m benchmarks.fronts.without_affinity serve --replicas HOST:PORT,HOST:PORT
"""

import sys

from wherry.cli import main
from wherry.remote.choice import Replica, ReplicaChoice

with_affinity = ReplicaChoice.choose


def choose(self: ReplicaChoice, rows: int, now: float, prompt: bytes = b"") -> Replica | None:
    return with_affinity(self, rows, now)


if __name__ == "__main__":
    ReplicaChoice.choose = choose  # type: ignore[method-assign]
    sys.exit(main())
