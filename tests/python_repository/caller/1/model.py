"""BLS: calls the model whose name it is given, in the way that it is told."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "HOW", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        how = json.loads(pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0])
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        told = getattr(self, how.pop("do"))(x, **how)
        tensor = pb_utils.Tensor("TOLD", np.array([str(t) for t in told], dtype=np.object_))
        return pb_utils.InferenceResponse([tensor])

    def request(self, x, model="add_sub", outputs=("SUM",), **more):
        batch = x[np.newaxis]
        inputs = [pb_utils.Tensor("A", batch), pb_utils.Tensor("B", batch)]
        return pb_utils.InferenceRequest(
            model_name=model, requested_output_names=list(outputs), inputs=inputs, **more
        )

    def result(self, response):
        if response.has_error():
            return [f"error {response.error().code()}: {response.error().message()}"]
        return [t.as_numpy().ravel()[0] for t in response.output_tensors()]

    def exec(self, x, **how):
        return self.result(self.request(x, **how).exec())

    def chain(self, x, models):
        """Call the first of these callers, and have it call the others."""
        model, *rest = models
        how = {"do": "chain", "models": rest} if rest else {"do": "exec"}
        inputs = [
            pb_utils.Tensor("HOW", np.array([json.dumps(how)], dtype=np.object_)),
            pb_utils.Tensor("X", x),
        ]
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["TOLD"], inputs=inputs
        )
        response = request.exec()
        if response.has_error():
            return self.result(response)
        return [f"{model}: {response.output_tensors()[0].as_numpy()[0].decode()}"]

    def gather(self, x, count):
        async def all_of_them():
            requests = [self.request(x + i) for i in range(count)]
            return await asyncio.gather(*(request.async_exec() for request in requests))

        return [self.result(response)[0] for response in asyncio.run(all_of_them())]

    def stream(self, x, times, stop_after=None, decoupled=True):
        request = pb_utils.InferenceRequest(
            model_name="repeat",
            requested_output_names=["COUNT"],
            inputs=[pb_utils.Tensor("TIMES", np.array([times], np.int32))],
        )
        if not decoupled:
            return self.result(request.exec())
        told = []
        for response in request.exec(decoupled=True):
            told += self.result(response)
            if stop_after is not None and len(told) >= stop_after:
                break
        return told

    def repeat(self, times):
        return pb_utils.InferenceRequest(
            model_name="repeat",
            requested_output_names=["COUNT"],
            inputs=[pb_utils.Tensor("TIMES", np.array([times], np.int32))],
        ).exec(decoupled=True)

    def count(self, x, times):
        """How many outputs each response has, as often as one may ask."""
        responses = self.repeat(times)
        return [[len(one.output_tensors()) for one in responses] for _ in range(3)]

    def cancel(self, x):
        """The first counts, and how the responses end once they were cancelled."""
        responses = self.repeat(-1)
        told = [self.result(next(responses))[0], self.result(next(responses))[0]]
        responses.cancel()
        *_, last = responses
        responses.cancel()
        ending = self.result(last) or ["no outputs"]
        return [*told, *ending, len(list(responses)) - len(list(responses))]

    def missing(self, x):
        request = self.request(x)
        request.inputs().pop()
        return self.result(request.exec())

    def double(self, x):
        return self.result(self.request(x.astype(np.float64)).exec())

    def ready(self, x, model, version=""):
        return [pb_utils.is_model_ready(model, version)]

    def load(self, x, model, unload=False):
        try:
            if unload:
                pb_utils.unload_model(model)
            else:
                pb_utils.load_model(model)
        except pb_utils.TritonModelException as error:
            return [f"refused: {error}"]
        return ["done"]

    def wherry_model(self, x, model, cancel=False):
        inputs = [pb_utils.Tensor("text", np.array([[b"some"], [b"words"]], dtype=np.object_))]
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=[], inputs=inputs
        )
        if cancel:
            responses = request.exec(decoupled=True)
            responses.cancel()
            (response,) = responses
        else:
            response = request.exec()
        if response.has_error():
            return self.result(response)
        return [response.output_tensors()[0].as_numpy().ravel().tolist()]
