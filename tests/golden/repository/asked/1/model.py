import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What a model is told of a request, as JSON text."""

    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "wanted": sorted(request.requested_output_names()),
                "parameters": json.loads(request.parameters() or "{}"),
            }
            text = np.array([[json.dumps(seen, sort_keys=True)]], dtype=np.object_)
            tensor = pb_utils.Tensor("SEEN", text)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
