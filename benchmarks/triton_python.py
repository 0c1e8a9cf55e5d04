"""What does a model.py of Triton's Python backend cost here, beside wherry's own model that does
the same?

    python -m benchmarks.triton_python [--seconds 2] [--rounds 3] [--json FILE]

CPU microseconds (user + system) per request of this process and of the worker, both through
wherry.Runtime; the median of some rounds. The Triton style gets a list of requests and makes a
response for each of them; the wherry style gets and gives whole columns. Then: seconds until
27 models are ready.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

import wherry
from benchmarks.harness import arguments, report
from benchmarks.process_handover import Figure, Meter, medians, tasks, thread
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository.json_form import from_json

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
            )
            for r in requests
        ]
"""
IMAGE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "OUT",
                        pb_utils.get_input_tensor_by_name(r, "IN")
                        .as_numpy()
                        .reshape(1, -1)[:, :1000],
                    )
                ]
            )
            for r in requests
        ]
"""
NUMBERS = {"data_type": "TYPE_FP32", "dims": [16]}
MODELS = 27


@wherry.model(max_batch_size=32)
def echo(
    x: Annotated[np.ndarray, wherry.FP32[16]],
) -> Annotated[np.ndarray, wherry.FP32[16]]:
    return x


@wherry.model(max_batch_size=16)
def image(
    x: Annotated[np.ndarray, wherry.FP32[3, 224, 224]],
) -> Annotated[np.ndarray, wherry.FP32[1000]]:
    return x.reshape(len(x), -1)[:, :1000]


def written(folder: Path, name: str, code: str, config: dict[str, Any]) -> RepositoryModel:
    version = folder / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(code)
    return backend_for(str(folder / name), "1", from_json({"name": name, **config}))


def triton_models(folder: Path) -> list[RepositoryModel]:
    return [
        written(
            folder,
            "triton_echo",
            ECHO,
            {
                "max_batch_size": 32,
                "dynamic_batching": {},
                "input": [{"name": "IN", **NUMBERS}],
                "output": [{"name": "OUT", **NUMBERS}],
            },
        ),
        written(
            folder,
            "triton_image",
            IMAGE,
            {
                "max_batch_size": 16,
                "dynamic_batching": {},
                "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [3, 224, 224]}],
                "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1000]}],
            },
        ),
    ]


def measure(folder: Path, seconds: float) -> list[Figure]:
    picture = np.random.default_rng(0).random((3, 224, 224), np.float32)
    row = np.arange(16, dtype=np.float32)
    figures = []
    with wherry.Runtime(echo, image, *triton_models(folder), isolation="process") as rt:

        def take(what: str, model: str, call: Callable[[float], list[float]]) -> None:
            call(0.2)
            meter = Meter(rt, model)
            figures.append(meter.figure(what, call(seconds)))

        for style, prefix in (("wherry", ""), ("Triton", "triton_")):
            one, other = f"{prefix}echo", f"{prefix}image"
            take(f"{style} style: 16 numbers, a lone thread", one, partial(thread, rt, one, row))
            for callers in (1, 64):
                what = f"{style} style: 16 numbers, {callers} in flight"
                take(what, one, partial(tasks, rt, one, row, callers))
            for callers in (1, 16):
                what = f"{style} style: 600 KB in, {callers} in flight"
                take(what, other, partial(tasks, rt, other, picture, callers))
    return figures


def seconds_to_ready(folder: Path) -> float:
    """Models that complete their configurations by themselves, four at a time."""
    code = ECHO.replace(
        "    def execute",
        "    @staticmethod\n"
        "    def auto_complete_config(config):\n"
        '        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [16]})\n'
        '        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [16]})\n'
        "        return config\n\n"
        "    def execute",
    )
    started = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        names = [f"model_{number}" for number in range(MODELS)]
        models = list(pool.map(lambda name: written(folder, name, code, {}), names))
    with wherry.Runtime(*models):
        return time.perf_counter() - started


def main() -> None:
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measure(Path(folder), options.seconds) for _ in range(options.rounds)]
        ready = median(seconds_to_ready(Path(folder)) for _ in range(options.rounds))
    title = f"CPU time of a request by style of model ({MODELS} models ready after {ready:.1f} s)"
    report(title, medians(rounds), options.json)


if __name__ == "__main__":
    main()
