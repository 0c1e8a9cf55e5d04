"""What do the batches look like that Triton's own client gets from this repository?

    wherry serve examples/triton_sentiment/models &
    python examples/triton_sentiment/client.py [--url 127.0.0.1:8000]

Twenty threads with tritonclient, as in the seed: 100 and 102 requests of a sentence, requests of 1
to 6 sentences, and the same number of sentences in requests of 1, 2, 4, 8 and 16. The batch sizes
are those of the server's statistics.

If the server lets models be loaded (--model-control-mode=explicit --load-model=sentiment), the
first two loops run once more with a preferred size of 10 and a delay of 0.2 s, and of 20 s.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import mean

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

THREADS = 20
SENTENCES = (
    "A wonderful, heartfelt film.",
    "The battery died in two days and support ignored me.",
    "I want a refund.",
    "Great value, and it arrived a day early!",
    "A dull mess; I left after twenty minutes.",
)


class Client:
    """tritonclient's connections are not for several threads: each has its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._local = threading.local()
        self._all: list[triton.InferenceServerClient] = []

    @property
    def connection(self) -> triton.InferenceServerClient:
        if not hasattr(self._local, "connection"):
            self._local.connection = triton.InferenceServerClient(self._url)
            self._all.append(self._local.connection)
        connection: triton.InferenceServerClient = self._local.connection
        return connection

    def labels(self, texts: Sequence[str]) -> list[str]:
        """One request for all of these sentences."""
        text = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
        text.set_data_from_numpy(np.array([[t.encode()] for t in texts], dtype=np.object_))
        answer = self.connection.infer("sentiment", [text])
        return [label.decode() for label in answer.as_numpy("LABEL")[:, 0]]

    def batches(self) -> dict[int, int]:
        """How many batches of each size the model has run so far."""
        (model,) = self.connection.get_inference_statistics("sentiment")["model_stats"]
        return {b["batch_size"]: b["compute_infer"]["count"] for b in model["batch_stats"]}

    def close(self) -> None:
        for connection in self._all:
            connection.close()


@contextmanager
def client_of(url: str) -> Iterator[Client]:
    client = Client(url)
    try:
        yield client
    finally:
        client.close()


def send(client: Client, requests: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """All requests from THREADS threads: seconds in all, and for each."""

    def ask(texts: Sequence[str]) -> float:
        started = time.perf_counter()
        if len(client.labels(texts)) != len(texts):
            raise RuntimeError("not one label for each sentence")
        return time.perf_counter() - started

    with ThreadPoolExecutor(THREADS) as pool:
        started = time.perf_counter()
        seconds = list(pool.map(ask, requests))
        return time.perf_counter() - started, seconds


def run(client: Client, what: str, requests: Sequence[Sequence[str]]) -> None:
    before = client.batches()
    total, seconds = send(client, requests)
    after = client.batches()
    made = {size: after[size] - before.get(size, 0) for size in sorted(after)}
    sizes = ", ".join(f"{count} x {size}" for size, count in made.items() if count)
    rows = sum(len(texts) for texts in requests)
    print(
        f"{what:36} {total:6.2f} s  {1000 * mean(seconds):7.1f} ms a request"
        f"  {1000 * total / rows:6.2f} ms a sentence  slowest {max(seconds):.2f} s\n"
        f"{'':36} batches: {sizes}"
    )


def delayed(client: Client, seconds: float) -> None:
    """Load the model again with this delay, and 10 rows as the preferred size."""
    config = client.connection.get_model_config("sentiment")
    config["dynamic_batching"] = {
        "preferred_batch_size": [10],
        "max_queue_delay_microseconds": round(seconds * 1e6),
    }
    client.connection.load_model("sentiment", config=json.dumps(config))


def sentences(count: int) -> list[str]:
    return [SENTENCES[n % len(SENTENCES)] for n in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="127.0.0.1:8000")
    options = parser.parse_args()
    with client_of(options.url) as client:
        for count in (100, 102):
            run(client, f"{count} requests of a sentence", [[s] for s in sentences(count)])
        sizes = random.Random(1).choices(range(1, 7), k=100)
        run(client, "100 requests of 1 to 6 sentences", [sentences(n) for n in sizes])
        for size in (1, 2, 4, 8, 16):
            many = [sentences(size) for _ in range(160 // size)]
            # Triton refuses more rows than max_batch_size; here they are split and joined.
            run(client, f"160 sentences, {size} in a request", many)
        for delay in (0.2, 20.0):
            try:
                delayed(client, delay)
            except InferenceServerException as error:
                print(f"a delay of {delay} s: not tried, {error.message()}")
                return
            for count in (100, 102):
                what = f"{count} requests, delay of {delay} s"
                run(client, what, [[s] for s in sentences(count)])
        client.connection.load_model("sentiment")  # as its config.pbtxt says


if __name__ == "__main__":
    main()
