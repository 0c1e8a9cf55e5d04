"""async def execute of a decoupled model: several requests at a time, in one thread."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "N", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "SQUARE", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.waiting = []

    async def execute(self, requests):
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
        if n < 0:
            raise ValueError("no square roots here")
        sender = request.get_response_sender()
        if n == 0:  # waits for another request, which shows that both are running
            woken = asyncio.Event()
            self.waiting.append(woken)
            await woken.wait()
        for woken in self.waiting:
            woken.set()
        for i in range(n + 1):
            tensor = pb_utils.Tensor("SQUARE", np.array([i * i], np.int32))
            await asyncio.sleep(0)
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if i == n else 0
            sender.send(pb_utils.InferenceResponse([tensor]), flags=final)
