import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Each input comes back as the output of the same type."""

    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [
                pb_utils.Tensor(tensor.name().replace("IN", "OUT", 1), tensor.as_numpy())
                for tensor in request.inputs()
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
