import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """IN is n: n responses with n in each, sent before execute returns."""

    def execute(self, requests):
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for i in range(int(number[0, 0])):
                last = i == number[0, 0] - 1
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0,
                )
            if number[0, 0] == 0:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
