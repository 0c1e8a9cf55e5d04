"""Goes wrong as it is told."""

import builtins
import ctypes
import os

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "DO", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        asked = [r.inputs()[0].as_numpy().ravel()[0].decode() for r in requests]
        responses = [self.answer(request, do) for request, do in zip(requests, asked)]
        if "too few" in asked:
            return responses[1:]
        if "no list" in asked:
            return responses[0]
        if "wrong type" in asked:
            return [None if r is None else "nothing" for r in responses]
        if "none" in asked:
            return None
        return responses

    def answer(self, request, do):
        if do.startswith("raise"):
            raise ValueError("as I was told")
        if do.startswith("error "):
            code = int(do.split()[1])
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"told {code}", code))
        if do == "exit":
            os._exit(3)
        if do in ("BaseException", "KeyboardInterrupt", "GeneratorExit"):
            raise getattr(builtins, do)("not an Exception")
        if do == "sys.exit":
            raise SystemExit(4)
        if do == "crash":
            ctypes.string_at(0)
        if do == "unknown output":
            return self.response("x", "NOWHERE")
        if do == "wrong datatype":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1)))])
        if do == "wrong rows":
            outputs = [pb_utils.Tensor("OUT", np.array([[b"1"], [b"2"]], dtype=np.object_))]
            return pb_utils.InferenceResponse(outputs)
        if do == "flat":
            outputs = [pb_utils.Tensor("OUT", np.array([b"1", b"2", b"3"], dtype=np.object_))]
            return pb_utils.InferenceResponse(outputs)
        if do == "nothing":
            return pb_utils.InferenceResponse([])
        if do == "sender":
            request.get_response_sender().send(self.response("sent"), flags=FINAL)
            return None
        if do == "twice":
            sender = request.get_response_sender()
            sender.send(self.response("first"), flags=FINAL)
            try:
                sender.send(self.response("second"))
            except pb_utils.TritonModelException as error:
                print(f"refused: {error}")
            return None
        if do == "dropped":
            return None
        if do == "surrogate":
            return self.response("\ud800")
        if do == "garbage":
            for name in os.listdir("/proc/self/fd"):
                if os.path.exists(f"/proc/self/fd/{name}") and os.readlink(
                    f"/proc/self/fd/{name}"
                ).startswith("socket:"):
                    os.write(int(name), b"what?" * 10)
        return self.response(do)

    def response(self, text, name="OUT"):
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array([[text]], dtype=np.object_))]
        )
