import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of a sequence so far, with the controls that came with the last step."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]

        key = value("CORRID")
        if value("START") or not value("READY"):  # a slot without a request has a step, too
            self.sums[key] = 0
        self.sums[key] += int(value("X"))
        seen = [[int(value(name)) for name in ("START", "END", "READY")]]
        outputs = [
            pb_utils.Tensor("SUM", np.array([[self.sums[key]]], dtype=np.int32)),
            pb_utils.Tensor("SEEN", np.array(seen, dtype=np.int32)),
        ]
        return pb_utils.InferenceResponse(outputs)
