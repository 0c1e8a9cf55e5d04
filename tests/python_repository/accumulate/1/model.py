"""A sum over the steps of a sequence, which the server keeps."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        after = given["BEFORE"] + given["X"]
        start, key = int(given["START"].ravel()[0]), int(given["ID"].ravel()[0])
        told = f"{key} {start} {request.correlation_id()} {request.flags()}"
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", after),
                pb_utils.Tensor("AFTER", after),
                pb_utils.Tensor("TOLD", np.array([[told]], dtype=np.object_)),
            ]
        )
