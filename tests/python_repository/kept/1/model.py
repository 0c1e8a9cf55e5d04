"""Keeps its inputs, which must not change under its hands, and writes to them."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT64", "dims": [-1]})
        config.add_output({"name": "KEPT", "data_type": "TYPE_INT64", "dims": [-1]})
        return config

    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            x += 1
            self.kept.append(x)
            firsts = np.array([kept[0] for kept in self.kept if (kept == kept[0]).all()])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("KEPT", firsts)]))
        return responses
