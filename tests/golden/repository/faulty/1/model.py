import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Does wrong what DO says."""

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        return [answer for answer in answers if answer != "nothing"]

    def answer(self, request):
        todo = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy()[0, 0].decode()
        if todo == "raise":
            raise ValueError("raised as asked")
        if todo == "raise for the client":
            raise pb_utils.TritonModelException("raised for the client as asked")
        if todo == "no response":
            return "nothing"
        if todo == "none":
            return None
        if todo == "number":
            return 5
        if todo == "no output":
            return pb_utils.InferenceResponse([])
        if todo == "other output":
            tensor = pb_utils.Tensor("ELSE", np.array([[1]], dtype=np.int32))
            return pb_utils.InferenceResponse([tensor])
        if todo == "text":
            error = pb_utils.TritonError("failed as asked")
        else:
            error = pb_utils.TritonError("failed as asked", getattr(pb_utils.TritonError, todo))
        return pb_utils.InferenceResponse(error=error)
