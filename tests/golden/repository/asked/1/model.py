import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What a model is told of a request, as JSON text; its answer has parameters, too."""

    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "wanted": sorted(request.requested_output_names()),
                "parameters": json.loads(request.parameters() or "{}"),
            }
            text = np.array([[json.dumps(seen, sort_keys=True)]], dtype=np.object_)
            tensor = pb_utils.Tensor("SEEN", text)
            parameters = {"text": "a", "number": 7, "yes": True}
            responses.append(pb_utils.InferenceResponse([tensor], parameters=parameters))
        return responses
