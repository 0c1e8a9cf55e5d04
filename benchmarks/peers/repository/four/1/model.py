"""What benchmarks/peers/functions/app.py does with texts, as a model of Triton's Python backend."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "return", pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
                    )
                ]
            )
            for request in requests
        ]
