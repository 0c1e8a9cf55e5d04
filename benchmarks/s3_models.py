"""The models of seed S3's experiments."""

from __future__ import annotations

from typing import Annotated

import cv2
import numpy as np

import wherry
from examples.ocr.app import decode as decode
from examples.ocr.app import detect as detect

cv2.setNumThreads(1)


@wherry.model(max_batch_size=1, isolation="thread")
def single(text: list[str]) -> list[str]:
    """Echo without batches."""
    return text


@wherry.model(max_batch_size=4, isolation="thread")
def four(text: list[str]) -> list[str]:
    """Echo in batches of up to 4, nothing set."""
    return text


@wherry.model(max_batch_size=4, max_queue_delay=0.010, isolation="thread")
def four_10ms(text: list[str]) -> list[str]:
    """The same with the delay that the experiment set."""
    return text


def _sum(numbers: list[int]) -> list[int]:
    totals = []
    for number in numbers:
        total = 0
        for i in range(1, number + 1):
            total += i
        totals.append(total)
    return totals


@wherry.model(max_batch_size=1, instances=10, isolation="thread")
def sum_in_threads(n: list[int]) -> list[int]:
    return _sum(n)


@wherry.model(max_batch_size=1, instances=10, isolation="process")
def sum_in_processes(n: list[int]) -> list[int]:
    return _sum(n)


@wherry.model(max_batch_size=1, instances=10, isolation="thread")
def jpeg_size(jpeg: list[bytes]) -> Annotated[np.ndarray, wherry.INT64[2]]:
    """Decode; the answer is small, so that decoding is what is measured."""
    images = [cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR) for file in jpeg]
    return np.array([image.shape[:2] for image in images if image is not None], np.int64)


@wherry.pipeline
async def lines(jpeg: bytes) -> Annotated[np.ndarray, wherry.FP32[-1, 4, 2]]:
    """An image network with decoding in front of it: where are lines of text?"""
    corners: np.ndarray = await detect.ainfer(await decode.ainfer(jpeg))
    return corners


def jpeg() -> bytes:
    """640 x 444, as in the experiment; smooth noise, as detailed as a photo."""
    small = np.random.default_rng(0).integers(0, 256, (56, 80, 3), np.uint8)
    pixels = cv2.resize(small, (640, 444), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
