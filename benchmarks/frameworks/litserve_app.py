"""LitServe: batches of up to 64 rows, which wait 5 ms for each other."""

import sys
from typing import Any

import litserve

from benchmarks.frameworks.classifier import classified, model


class Reviews(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        model()

    def decode_request(self, request: dict[str, Any]) -> str:
        return str(request["text"])

    def predict(self, texts: list[str]) -> list[str]:
        return classified(texts)

    def encode_response(self, label: str) -> dict[str, str]:
        return {"label": label}


if __name__ == "__main__":
    api = Reviews(max_batch_size=64, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
