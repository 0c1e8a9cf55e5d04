"""BentoML: a batchable function of up to 64 rows, which finds its waits by itself. A client sends a
list of one review. (A second service before it, which takes a review by itself, had a tenth of its
calls to this one disconnected.)"""

import bentoml

from benchmarks.frameworks.classifier import classified, model


@bentoml.service(workers=1)
class Reviews:
    def __init__(self) -> None:
        model()

    @bentoml.api(batchable=True, max_batch_size=64)
    def predict(self, texts: list[str]) -> list[str]:
        return classified(texts)
