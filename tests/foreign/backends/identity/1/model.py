"""NVIDIA's backend `identity`: each INPUTx is OUTPUTx."""

from __future__ import annotations

import json
import time
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Knows the parameters by which it is slow."""

    def initialize(self, args: dict[str, str]) -> None:
        given = json.loads(args["model_config"])["parameters"]
        said = {
            name: int(value["string_value"])
            for name, value in given.items()
            if value["string_value"].lstrip("-").isdigit()
        }
        number = int(args["model_instance_name"].rpartition("_")[2])
        times = max(1, said.get("instance_wise_delay_multiplier", 0) * number)
        self.delay = said.get("execute_delay_ms", 0) * times / 1000
        time.sleep(said.get("creation_delay_sec", 0))

    def execute(self, requests: list[Any]) -> list[Any]:
        time.sleep(self.delay)
        return [
            pb_utils.InferenceResponse([self.output(one) for one in request.inputs()])
            for request in requests
        ]

    def output(self, tensor: Any) -> Any:
        name = tensor.name().replace("INPUT", "OUTPUT")
        return pb_utils.Tensor(name, tensor.as_numpy())
