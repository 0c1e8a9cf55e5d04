"""How was the head trained? Logistic regression over the encoder's vectors, in two minutes.

    pip download --no-binary :all: --no-deps vaderSentiment==3.3.2
    python -m examples.sentiment.train_head vaderSentiment-3.3.2.tar.gz

The archive carries 23,703 sentences, each with its mean rating (-4 to 4) by twenty people. A fifth
of them, whole reviews and articles at a time, and all of sentences.txt are held out.
"""

import io
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.sentiment.app import HEAD, encoder, features

SOURCES = {
    "film reviews": "movieReviewSnippets",
    "product reviews": "amazonReviewSnippets",
    "tweets": "tweets",
    "editorials": "nytEditorialSnippets",
}
SENTENCES = Path(__file__).with_name("sentences.txt")
#: Ratings become probabilities: a rating of 1 is positive for four readers of five.
STEEPNESS = 1.5
#: Chosen among 0.1, 0.3 and 1 (held-out accuracy differs by less than 0.004).
L2 = 0.3
#: Sentences rated closer to zero than this are counted as neutral: not scored.
NEUTRAL = 0.5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rated:
    source: str
    document: str
    rating: float
    text: str


def read(archive: Path) -> list[Rated]:
    with tarfile.open(archive) as outer:
        name = next(n for n in outer.getnames() if n.endswith("hutto_ICWSM_2014.tar.gz"))
        member = outer.extractfile(name)
        assert member is not None
        content = member.read()
    rows = []
    with tarfile.open(fileobj=io.BytesIO(content)) as inner:
        for source, file in SOURCES.items():
            lines = inner.extractfile(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
            assert lines is not None
            for line in lines.read().decode("latin-1").splitlines():
                if line.count("\t") >= 2:
                    id, rating, text = line.split("\t", 2)
                    document = f"{source} {id.split('_')[0]}"  # 12_3: third sentence of the 12th
                    rows.append(Rated(source, document, float(rating), text.strip()))
    return rows


def embed(texts: list[str]) -> Floats:
    """Vectors for all texts, by length so that little is padded, on two threads."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    chunks = [order[i : i + 64] for i in range(0, len(order), 64)]
    encode = encoder()
    out = np.empty((len(texts), 3 * 384))
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda chunk: features(encode([texts[i] for i in chunk])), chunks)
        for done, (chunk, vectors) in enumerate(zip(chunks, results, strict=True)):
            out[chunk] = vectors
            print(f"\rembedded {min(64 * done + 64, len(texts))}/{len(texts)}", end="", flush=True)
    print()
    return out


def fit(x: Floats, target: Floats) -> Floats:
    """Logistic regression by Newton's method; the last weight is the bias."""
    x = np.hstack([x, np.ones((len(x), 1))])
    penalty = np.full(x.shape[1], L2)
    penalty[-1] = 0
    weights = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (p - target) + penalty * weights
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + np.diag(penalty), gradient)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def main(archive: str) -> None:
    rows = read(Path(archive))
    shown = set(SENTENCES.read_text().splitlines())
    documents = sorted({row.document for row in rows})
    chosen = np.random.default_rng(0).permutation(len(documents))[: len(documents) // 5]
    held_out = {documents[i] for i in chosen}
    x = embed([row.text for row in rows])
    rating = np.array([row.rating for row in rows])
    source = np.array([row.source for row in rows])
    demo = np.array([row.text in shown for row in rows])
    test = np.array([row.document in held_out for row in rows])

    train = ~test & ~demo
    weights = fit(x[train], 1 / (1 + np.exp(-STEEPNESS * rating[train])))
    np.savez(HEAD, weights=weights[:-1].astype(np.float32), bias=weights[-1:].astype(np.float32))

    right = (x @ weights[:-1] + weights[-1] > 0) == (rating > 0)
    clear = np.abs(rating) >= NEUTRAL
    print(f"trained on {train.sum()} sentences; held-out accuracy:")
    for name in SOURCES:
        report(name, right, rating, test & clear & (source == name))
    report("all", right, rating, test & clear)
    report("all, |rating| >= 1", right, rating, test & (np.abs(rating) >= 1))
    report("sentences.txt", right, rating, demo & clear)


def report(
    name: str, right: npt.NDArray[np.bool_], rating: Floats, rows: npt.NDArray[np.bool_]
) -> None:
    positive = float((rating[rows] > 0).mean())
    print(
        f"  {name:20s} {right[rows].mean():.3f}  (n={rows.sum()},"
        f" always the same answer: {max(positive, 1 - positive):.3f})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
