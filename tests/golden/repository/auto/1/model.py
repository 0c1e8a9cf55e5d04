import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says itself what it takes and gives: there is no config.pbtxt."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_input({"name": "Z", "data_type": "TYPE_FP32", "dims": [2], "optional": True})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", -x)]))
        return responses
