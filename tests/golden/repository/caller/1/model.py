import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks the model that MODEL names, and hands on its answer."""

    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()[0].decode()
            call = pb_utils.InferenceRequest(
                model_name=name,
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[t for t in request.inputs() if t.name() != "MODEL"],
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.get_output_tensor_by_name(response, name)
                        for name in ("OUTPUT0", "OUTPUT1")
                    ]
                )
            )
        return responses
