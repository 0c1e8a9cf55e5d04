"""Decoupled: each request has as many responses as it says, sent by a thread of its own.

Without an end they come at a pace at which a reader on a busy machine does not fall behind.
"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TIMES", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "COUNT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.threads = []
        self.never = threading.Event()

    def execute(self, requests):
        for request in requests:
            times = int(pb_utils.get_input_tensor_by_name(request, "TIMES").as_numpy()[0])
            thread = threading.Thread(target=self.send, args=(request.get_response_sender(), times))
            thread.start()
            self.threads.append(thread)
        return None

    def send(self, sender, times):
        i = 0
        while i < times or times < 0:  # less than nothing: until its client has left
            if sender.is_cancelled():
                print(f"cancelled after {i}")
                break
            tensor = pb_utils.Tensor("COUNT", np.array([i], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            i += 1
            if times < 0:
                self.never.wait(0.01)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
        print("finalized")
