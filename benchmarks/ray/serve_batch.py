"""The simulated device as users of Ray Serve write it: `@serve.batch`, and V2's JSON by hand."""

from __future__ import annotations

import time
from typing import Any

from ray import serve
from starlette.requests import Request


class Batched:
    """5 ms and 0.2 ms a row, up to 32 rows, as `benchmarks.models.device`."""

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        (answer,) = [await self.device(one["data"][0]) for one in body["inputs"]]
        output = {"name": "output", "datatype": "BYTES", "shape": [1], "data": [answer]}
        return {"model_name": "device", "model_version": "1", "outputs": [output]}

    async def device(self, text: str) -> str:
        raise NotImplementedError


def application(wait: float, ongoing: int) -> Any:
    """Two replicas whose batches wait for `wait` seconds, with so many requests at once each."""

    batched: Any = serve.batch(max_batch_size=32, batch_wait_timeout_s=wait)

    class Device(Batched):
        @batched  # type: ignore[untyped-decorator]
        async def device(self, text: list[str]) -> list[str]:
            time.sleep(0.005 + 0.0002 * len(text))  # noqa: ASYNC251 - as a model call blocks
            return text

    made: Any = serve.deployment(Device)  # its types do not know of a class without arguments
    deployment = made.options(
        num_replicas=2, max_ongoing_requests=ongoing, ray_actor_options={"num_cpus": 1},
        logging_config={"log_level": "WARNING"},  # as ray_serve does
    )  # fmt: skip
    return deployment.bind()
