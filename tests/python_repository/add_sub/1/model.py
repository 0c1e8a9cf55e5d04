"""Two numbers in, their sum and difference out."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.types = {
            name: pb_utils.triton_string_to_numpy(
                pb_utils.get_output_config_by_name(config, name)["data_type"]
            )
            for name in ("SUM", "DIFFERENCE")
        }

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            results = {"SUM": a + b, "DIFFERENCE": a - b}
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor(n, results[n].astype(self.types[n])) for n in results]
                )
            )
        return responses
