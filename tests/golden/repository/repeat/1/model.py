import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A response for each number of IN, from a thread; an error instead of number BROKEN_AT."""

    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            broken = pb_utils.get_input_tensor_by_name(request, "BROKEN_AT")
            broken_at = -1 if broken is None else int(broken.as_numpy()[0])
            sender = request.get_response_sender()
            thread = threading.Thread(target=self.send, args=(sender, numbers, broken_at))
            self.threads.append(thread)
            thread.start()
        return None

    def send(self, sender, numbers, broken_at):
        for index, number in enumerate(numbers):
            if index == broken_at:
                error = pb_utils.TritonError("broken as asked", pb_utils.TritonError.INVALID_ARG)
                sender.send(
                    pb_utils.InferenceResponse(error=error),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
                return
            out = pb_utils.Tensor("OUT", np.array([number], dtype=np.int32))
            idx = pb_utils.Tensor("IDX", np.array([index], dtype=np.uint32))
            sender.send(pb_utils.InferenceResponse([out, idx]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
