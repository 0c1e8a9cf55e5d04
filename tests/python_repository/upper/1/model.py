"""Strings, as arrays of bytes objects. It brings its own configuration."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "UPPER", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT32", "dims": [-1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = np.array([t.decode().upper() for t in texts.ravel()], dtype=np.object_)
            length = np.array([len(t) for t in texts.ravel()], np.int32)
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("UPPER", upper.reshape(texts.shape)),
                        pb_utils.Tensor("LENGTH", length.reshape(texts.shape)),
                    ]
                )
            )
        return responses
