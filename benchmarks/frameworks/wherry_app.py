"""wherry: batches of up to 64 rows, nothing to tune."""

import wherry
from benchmarks.frameworks.classifier import classified, model


class Reviews(wherry.Model):
    max_batch_size = 64
    route = "/predict"

    def load(self, device: wherry.Device) -> None:
        model()

    def execute(self, text: list[str]) -> list[str]:
        return classified(text)
