"""NVIDIA's test backends `sequence` and `dyna_sequence`: the sum of a sequence so far."""

from __future__ import annotations

import json
import time
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The last step of a sequence whose requests have CORRID adds its id."""

    def initialize(self, args: dict[str, str]) -> None:
        self.sums: dict[Any, Any] = {}
        given = json.loads(args["model_config"])["parameters"]
        self.delay = int(given.get("execute_delay_ms", {}).get("string_value", 0)) / 1000

    def execute(self, requests: list[Any]) -> list[Any]:
        time.sleep(self.delay)
        return [self.step(request) for request in requests]

    def step(self, request: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        key, total = request.correlation_id(), given["INPUT"].sum(dtype="int32")
        if not given["START"].any():
            total = total + self.sums.get(key, 0)
        self.sums[key] = total
        if "CORRID" in given and "END" in given and given["END"].any():
            total = total + int(given["CORRID"].reshape(-1)[0])
        told = (given["INPUT"] * 0 + total).astype("int32")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", told)])
