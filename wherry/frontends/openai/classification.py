"""How do a model's numbers become classes, and which is the best?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from wherry.frontends.http.answers import request_id_of
from wherry.frontends.openai.fields.embeddings import ClassifyRequest
from wherry.frontends.openai.fits import ClassFit, class_fit
from wherry.frontends.openai.numbers_call import Numbers, NumbersCall
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.request import InferResponse


class Classification(NumbersCall):
    """Probabilities of classes, in vLLM's words. An output `logits` becomes probabilities here,
    unless the request wants the numbers as they are."""

    operation = "classify"

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, wanted: ClassifyRequest) -> None:
        fit = class_fit(loaded.signature, loaded.model.output_labels)
        assert fit is not None
        super().__init__(entry, loaded, wanted, fit)
        self._classes: ClassFit = fit
        own = loaded.signature.input("use_activation") is not None
        self._logits = fit.numbers.name == "logits" and not own
        if self._logits:
            self.done = self.done | {"use_activation"}
        self._activates = self._logits and wanted.use_activation is not False
        self._labels = loaded.model.output_labels.get(fit.numbers.name, ())

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        rows = [row.reshape(-1).astype(np.float64) for row in self.numbers(response)]
        if self._activates:
            rows = list(map(_probabilities, rows))
        self.check_finite(rows)
        label = self._classes.label
        named = None if label is None else response.outputs[label.name]
        data = [
            {
                "index": index,
                "label": self._best(row) if named is None else named[index],
                "probs": row.tolist(),
                "num_classes": len(row),
            }
            for index, row in enumerate(rows)
        ]
        answer = {
            "id": f"classify-{request_id_of(self._exchange)}",
            "object": "list",
            "created": int(time.time()),
            "model": self.model_name,
            "data": data,
            "usage": self.usage(response, self._tokens),
        }
        return [msgspec.json.encode(answer)]

    def _best(self, row: Numbers) -> Any:
        """The name of the most probable class, if it is known."""
        best = int(row.argmax()) if len(row) else 0
        return (self._labels[best] or None) if best < len(self._labels) else None


def _probabilities(logits: Numbers) -> Numbers:
    """Of one of several classes, or of a single one."""
    if len(logits) == 1:
        logits = np.array([logits[0], 0.0])
        return _probabilities(logits)[:1]
    powers = np.exp(logits - logits.max()) if len(logits) else logits
    made: Numbers = powers / powers.sum()
    return made
