import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum and the number of what the decoupled model `repeat` answers."""

    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="repeat",
                requested_output_names=["OUT"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
            )
            numbers = []
            for answer in call.exec(decoupled=True):
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                if answer.output_tensors():
                    out = pb_utils.get_output_tensor_by_name(answer, "OUT")
                    numbers.append(int(out.as_numpy()[0]))
            outputs = [
                pb_utils.Tensor("SUM", np.array([sum(numbers)], dtype=np.int32)),
                pb_utils.Tensor("N", np.array([len(numbers)], dtype=np.int32)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
