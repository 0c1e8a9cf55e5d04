"""What a model can ask of a request, told as JSON; and parameters of a response."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_input(
            {"name": "EXTRA", "data_type": "TYPE_INT32", "dims": [1], "optional": True}
        )
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "UNASKED", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        responses = []
        for request in requests:
            told = {
                "args": {k: v for k, v in self.args.items() if k != "model_config"},
                "texts": all(isinstance(value, str) for value in self.args.values()),
                "max_batch_size": json.loads(self.args["model_config"])["max_batch_size"],
                "inputs": [tensor.name() for tensor in request.inputs()],
                "requests": len(requests),
                "request_id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "wanted": sorted(request.requested_output_names()),
                "cancelled": request.is_cancelled(),
            }
            outputs = [
                pb_utils.Tensor("TOLD", np.array([[json.dumps(told)]], dtype=np.object_)),
                pb_utils.Tensor("UNASKED", np.array([[7]], np.int32)),
            ]
            responses.append(
                pb_utils.InferenceResponse(outputs, parameters={"kind": "told", "n": 3, "ok": True})
            )
        return responses
