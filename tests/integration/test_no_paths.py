"""No answer to a client says where the server's files are, whatever is wrong with them."""

import json
import os
import site
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.grpc_calls import Client as GrpcClient
from tests.http_exchange import Client, app_loop
from wherry import Runtime
from wherry.server.grpc_app import GrpcApp
from wherry.server.http_app import HttpApp
from wherry.triton.loading.control import ModelControl

IO = """
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
pytest.importorskip("onnxruntime")  # what it opens once stays open: before any test

PYTHON = f'backend: "python" max_batch_size: 4 {IO}'
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {}

    def execute(self, requests):
        {}
"""


def model(initialize: str = "pass", execute: str = "return []") -> str:
    return MODEL.format(initialize, execute)


#: Each: its config.pbtxt, and its files.
BROKEN: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": (PYTHON, {}),
    "no-file": (PYTHON, {"1/other.py": ""}),
    "syntax": (PYTHON, {"1/model.py": "def ("}),
    "import": (PYTHON, {"1/model.py": "import nothing_of_this_name"}),
    "import-name": (PYTHON, {"1/model.py": "from json import nothing_of_this_name"}),
    "no-class": (PYTHON, {"1/model.py": "x = 1"}),
    "opens": (PYTHON, {"1/model.py": model("open(args['model_repository'] + '/a b/weights.bin')")}),
    "says-where": (
        PYTHON,
        {"1/model.py": model("raise ValueError(f'see {__file__}:12 and ' + repr(__file__))")},
    ),
    "loads-so": (PYTHON, {"1/model.py": model("import ctypes; ctypes.CDLL('/opt/none/libx.so')")}),
    "exits": (PYTHON, {"1/model.py": model("import sys; sys.exit(__file__)")}),
    "environment": (
        PYTHON + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/none/env" } }',
        {"1/model.py": model()},
    ),
    "onnx": (f'backend: "onnxruntime" {IO}', {"1/model.onnx": "no model"}),
    "no-onnx": (f'backend: "onnxruntime" {IO}', {"1/x": ""}),
    "torch": (f'backend: "pytorch" {IO}', {"1/model.pt": "no model"}),
    "pbtxt": ("backend: python nonsense {", {"1/model.py": ""}),
    "pbtxt-file": (PYTHON + 'default_model_filename: "/opt/none/x.py"', {"1/x": ""}),
    "labels": (PYTHON.replace('"Y"', '"Y" label_filename: "none.txt"'), {"1/model.py": ""}),
    "backend": (f'backend: "nothing" {IO}', {"1/x": ""}),
}

ROOTS = [
    tempfile.gettempdir(),
    sysconfig.get_paths()["purelib"],
    os.path.dirname(os.__file__),
    *site.getsitepackages(),
    str(Path(__file__).parents[2]),
    "/opt/none",
]


def assert_shows_no_path(text: str, repository: Path) -> None:
    for root in (str(repository), *ROOTS):
        assert root not in text, text


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_cannot_be_loaded_shows_no_path(name: str, tmp_path: Path) -> None:
    repository = tmp_path / "a repository"
    config, files = BROKEN[name]
    for path, text in {**files, "config.pbtxt": config}.items():
        place = repository / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    with Runtime(isolation="process") as runtime, app_loop() as loop:
        control = ModelControl(runtime, [repository], mode="explicit")
        try:
            control.start()
            client = Client(HttpApp(runtime, control=control), runtime, loop)
            answer = client.post(f"/v2/repository/models/{name}/load")
            assert 400 <= answer.status < 600
            assert name in answer.error
            said = [answer.body.decode()]
            said.append(client.post("/v2/repository/index").body.decode())
            said += [client.get(path).body.decode() for path in asked(name)]
            grpc = GrpcClient(GrpcApp(runtime, control=control), runtime, loop)
            said += [repr(grpc.ask("RepositoryModelLoad", {"model_name": name}).error)]
            said += [json.dumps(grpc.ask("RepositoryIndex").answer)]
            for text in said:
                assert_shows_no_path(text, repository)
        finally:
            control.freeze()
            runtime.close()
            control.close()


def asked(name: str) -> list[str]:
    paths = ["", "/ready", "/config", "/stats", "/versions/1", "/trace/setting"]
    return ["/v2/health/ready", "/v2/models", "/v1/models", "/metrics"] + [
        f"/v2/models/{name}{path}" for path in paths
    ]


EXECUTE: dict[str, Callable[[], str]] = {
    "raises": lambda: "raise OSError(2, 'none', __file__)",
    "answers": lambda: (
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('bad ' + __file__))"
        " for _ in requests]"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTE)
def test_a_request_that_fails_in_the_model_shows_no_path(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(model(execute=EXECUTE[name]()))
    (tmp_path / "m" / "config.pbtxt").write_text(PYTHON)
    tensor: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}

    with Runtime(isolation="process") as runtime, app_loop() as loop:
        control = ModelControl(runtime, [tmp_path])
        try:
            control.start()
            client = Client(HttpApp(runtime, control=control), runtime, loop)
            answer = client.post("/v2/models/m/infer", {"inputs": [tensor]})
            assert answer.status == 500
            assert "model.py" in answer.error
            assert_shows_no_path(answer.error, tmp_path)
            answer = client.post("/v2/models/m/generate_stream", {"X": [1.0]})
            assert_shows_no_path(answer.body.decode(), tmp_path)
        finally:
            control.freeze()
            runtime.close()
            control.close()
