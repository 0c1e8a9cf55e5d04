import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What it gets, and the shape that it sees."""

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            shape = np.tile(np.array(x.shape, dtype=np.int64), (x.shape[0], 1))
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", x), pb_utils.Tensor("SHAPE", shape)]
                )
            )
        return responses
