"""The simulated device: 5 ms and 0.2 ms a row, without using the processor."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [
            pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests
        ]
        time.sleep(0.005 + 0.0002 * len(texts))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("return", text)]) for text in texts]
