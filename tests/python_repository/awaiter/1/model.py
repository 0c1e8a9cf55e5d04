"""async def execute of a model that is not decoupled, with calls of another model."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        call = pb_utils.InferenceRequest(
            model_name="add_sub",
            requested_output_names=["SUM"],
            inputs=[pb_utils.Tensor("A", x), pb_utils.Tensor("B", x)],
        )
        response = await call.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        y = pb_utils.get_output_tensor_by_name(response, "SUM").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
