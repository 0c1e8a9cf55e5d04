"""What benchmarks/peers/functions/app.py does, on MOSEC: each model at a path of its own.

ENVIRONMENT/bin/python benchmarks/peers/mosec_app.py --address 127.0.0.1 --port PORT

Requests are V2's JSON; MOSEC decodes and encodes JSON as it does by default. It waits 10 ms for
each batch unless told otherwise: 1 ms, the least that it takes, where no delay is part of the cell.
"""

import time
from typing import Any

from mosec import Runtime, Server, Worker


def answer(request: dict[str, Any]) -> dict[str, Any]:
    (given,) = request["inputs"]
    output = {"name": "return", "datatype": "BYTES", "shape": given["shape"], "data": given["data"]}
    return {"model_name": "echo", "outputs": [output]}


class Single(Worker):  # type: ignore[misc]
    def forward(self, data: dict[str, Any]) -> dict[str, Any]:
        return answer(data)


class Echo(Worker):  # type: ignore[misc]
    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [answer(one) for one in data]


class Device(Echo):
    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(0.005 + 0.0002 * len(data))
        return super().forward(data)


if __name__ == "__main__":
    server = Server()
    server.register_runtime(
        {
            "/single": [Runtime(Single)],
            "/echo": [Runtime(Echo, max_batch_size=32, max_wait_time=1)],
            "/device": [Runtime(Device, max_batch_size=32, max_wait_time=1)],
            "/four": [Runtime(Echo, max_batch_size=4, max_wait_time=10)],
        }
    )
    server.run()
