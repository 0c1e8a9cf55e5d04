"""The models that `benchmarks.fronts` serves."""

import time
from typing import Annotated

import numpy as np

import wherry


@wherry.model(max_batch_size=32)
def hello(name: list[str]) -> list[str]:
    return [f"hello {one}" for one in name]


@wherry.model(max_batch_size=32)
def echo(x: Annotated[np.ndarray, wherry.FP32[16]]) -> Annotated[np.ndarray, wherry.FP32[16]]:
    return x


@wherry.model(max_batch_size=32)
def device(name: list[str]) -> list[str]:
    """Take the time of a simulated accelerator, 5 ms and 0.2 ms a row, without the processor."""
    time.sleep(0.005 + 0.0002 * len(name))
    return name
