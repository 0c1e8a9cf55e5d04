"""BF16, which only DLPack can carry: halves its input by torch."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_BF16", "dims": [-1]})
        config.add_output({"name": "HALF", "data_type": "TYPE_BF16", "dims": [-1]})
        return config

    def execute(self, requests):
        import torch

        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            half = torch.from_dlpack(x) / 2
            assert half.dtype == torch.bfloat16
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("HALF", half)])
            )
        return responses
