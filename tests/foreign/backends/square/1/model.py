"""NVIDIA's test backend `square`: the number IN, as many times as it says."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils

END = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Responses come from a thread each request."""

    def initialize(self, args: dict[str, str]) -> None:
        self.threads: list[threading.Thread] = []

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            arguments = request.get_response_sender(), value
            self.threads.append(threading.Thread(target=self.answer, args=arguments))
            self.threads[-1].start()

    def answer(self, sender: Any, value: Any) -> None:
        for _ in range(int(value.reshape(-1)[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        sender.send(flags=END)

    def finalize(self) -> None:
        for thread in self.threads:
            thread.join()
