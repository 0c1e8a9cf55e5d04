"""NVIDIA's test backend `repeat`: each element of IN as a response of its own, after its DELAY."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

END = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Responses come from a thread, while the next request waits for WAIT milliseconds only."""

    def initialize(self, args: dict[str, str]) -> None:
        self.threads: list[threading.Thread] = []

    def execute(self, requests: list[Any]) -> None:
        longest = 0
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            values, delays = given["IN"], given["DELAY"]
            longest = max(longest, int(given["WAIT"].reshape(-1)[0]))
            sender = request.get_response_sender()
            if values.shape != delays.shape:
                shapes = " and ".join(
                    str(list(one.shape)).replace(" ", "") for one in (values, delays)
                )
                error = pb_utils.TritonError(f"expected IN and DELAY shape to match, got {shapes}")
                sender.send(pb_utils.InferenceResponse(error=error), END)
                continue
            self.threads.append(threading.Thread(target=self.answer, args=(sender, values, delays)))
            self.threads[-1].start()
        time.sleep(longest / 1000)

    def answer(self, sender: Any, values: Any, delays: Any) -> None:
        places = zip(values.reshape(-1), delays.reshape(-1), strict=True)
        shape = [1] * values.ndim
        for place, (value, delay) in enumerate(places):
            time.sleep(int(delay) / 1000)
            out = pb_utils.Tensor("OUT", np.full(shape, value, np.int32))
            index = pb_utils.Tensor("IDX", np.full(shape, place, np.uint32))
            sender.send(pb_utils.InferenceResponse([out, index]))
        sender.send(flags=END)

    def finalize(self) -> None:
        for thread in self.threads:
            thread.join()
