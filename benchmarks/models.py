"""The models that the benchmarks serve."""

import time
from typing import Annotated

import numpy as np
import numpy.typing as npt

import wherry

Array = npt.NDArray[np.float32]


@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=1)
def single(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=4)
def four(text: list[str]) -> list[str]:
    """Seed S3's adaptive table, with no delay to set."""
    return text


@wherry.model(max_batch_size=8)
def image(
    pixels: Annotated[Array, wherry.FP32[3, 224, 224]],
) -> Annotated[Array, wherry.FP32[1000]]:
    """600 KB in, 4 KB out, nearly no work."""
    return np.ascontiguousarray(pixels[:, 0, :5, :200].reshape(len(pixels), 1000))


@wherry.model(max_batch_size=32)
def device(text: list[str]) -> list[str]:
    """A simulated accelerator: 5 ms and 0.2 ms a row, without using the processor."""
    time.sleep(0.005 + 0.0002 * len(text))
    return text


@wherry.model(max_batch_size=8, max_queue_wait=1.0)
def slow_device(text: list[str]) -> list[str]:
    """20 ms and 2.5 ms a row; nobody is to wait for longer than a second."""
    time.sleep(0.020 + 0.0025 * len(text))
    return text
