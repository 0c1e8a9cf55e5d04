"""Iterative sequence: asks for each request again until it has counted down to 0."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.steps = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                start = pb_utils.get_input_tensor_by_name(request, "FROM").as_numpy()
                self.left[key], self.steps[key] = int(start[0][0]), 0
            self.left[key] -= 1
            self.steps[key] += 1
            if self.left[key] > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            steps = np.array([[self.steps[key]]], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("STEPS", steps)]))
        return responses
