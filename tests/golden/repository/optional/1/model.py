import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """X times FACTOR, which is 10 if the request has none."""

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            factor = pb_utils.get_input_tensor_by_name(request, "FACTOR")
            y = x * (np.float32(10) if factor is None else factor.as_numpy())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
        return responses
