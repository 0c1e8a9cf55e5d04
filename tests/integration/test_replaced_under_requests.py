"""Is each request answered while its model is replaced, again and again?"""

import faulthandler
import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import wherry
from tests.fakes import TIMEOUT, threads
from tests.python_models import written_model
from wherry.core.models.model import Model
from wherry.core.models.settings import Isolation
from wherry.server.server import Server

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "output", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "text") for one in requests]
        answers = [pb_utils.Tensor("output", tensor.as_numpy()) for tensor in tensors]
        return [pb_utils.InferenceResponse([answer]) for answer in answers]
"""
QUESTION = json.dumps(
    {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]}]}
)


def written(tmp_path: Path) -> Model:
    return written_model(tmp_path, ECHO)


def in_a_thread(tmp_path: Path) -> Model:
    return _echo("thread")


def in_a_process(tmp_path: Path) -> Model:
    return _echo("process")


def echo(text: list[str]) -> list[str]:
    return text


def _echo(isolation: Isolation) -> Model:
    return wherry.model(max_batch_size=8, isolation=isolation, name="written")(echo)


@pytest.mark.full
@pytest.mark.usefixtures("_threads_switch_often")
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("made", "times"), [(written, 10), (in_a_process, 4), (in_a_thread, 100)])
def test_no_request_is_lost_while_its_model_is_replaced(
    made: Callable[[Path], Model], times: int, clients: int, tmp_path: Path
) -> None:
    """One client alone, whose answers an event loop may read itself, or several at once; one of
    them calls in this process."""
    over, answered = threading.Event(), threading.Event()

    with wherry.Runtime(made(tmp_path)) as runtime, Server(runtime, port=0) as server:
        host, port = server.url.removeprefix("http://").split(":")

        def ask(number: int) -> None:
            connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT)
            try:
                while not over.is_set():
                    connection.request("POST", "/v2/models/written/infer", QUESTION)
                    answer = connection.getresponse()
                    body = answer.read()
                    assert answer.status == 200, body
                    answered.set()
            except TimeoutError:
                faulthandler.dump_traceback()  # where every thread of the server waits
                raise
            finally:
                connection.close()

        def call(number: int) -> None:
            while clients > 1 and not over.is_set():
                runtime.infer("written", [b"hello"] if made is written else "hello")

        with threads(clients + 1, lambda number: (call if number == clients else ask)(number)):
            try:
                for _ in range(times):
                    runtime.load(made(tmp_path))
                    answered.clear()
                    assert answered.wait(TIMEOUT), "no request is answered"
            finally:
                over.set()
