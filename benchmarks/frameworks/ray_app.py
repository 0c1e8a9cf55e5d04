"""Ray Serve: `@serve.batch` of up to 64 rows, which wait 5 ms for each other."""

import sys
import time
from typing import Any

from ray import serve
from starlette.requests import Request

from benchmarks.frameworks.classifier import classified, model


class Reviews:
    def __init__(self) -> None:
        model()

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def classify(self, texts: list[str]) -> list[str]:
        return classified(texts)

    async def __call__(self, request: Request) -> dict[str, Any]:
        return {"label": await self.classify((await request.json())["text"])}


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    deployment = serve.deployment(max_ongoing_requests=512)(Reviews)
    serve.run(deployment.bind(), route_prefix="/predict")
    while True:
        time.sleep(60)
