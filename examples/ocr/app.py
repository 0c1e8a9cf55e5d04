"""How do several networks read one page, together with everybody else's pages?

    wherry serve examples/ocr/app.py

    decode -> detect -> for each line: cut -> direction -> recognise

Each stage is a model with its own batches and instances; `ocr` is the pipeline that calls them.
One page has some ten lines: they run at the same time, and in batches with the lines of all other
callers' pages. `ocr_lines` gives them one by one, as they are read.
"""

import os
from collections.abc import AsyncIterator
from typing import Annotated, TypedDict

import cv2
import numpy as np

import wherry

from .lines import HEIGHT, Array, boxes, in_reading_order, network, padded, planes, straightened

cv2.setNumThreads(1)  # the instances fill the cores

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Image = Annotated[list[np.ndarray], wherry.UINT8[-1, -1, 3]]
Strip = Annotated[list[np.ndarray], wherry.UINT8[HEIGHT, -1, 3]]


@wherry.model(max_batch_size=4, isolation="thread", instances=CORES)
def decode(jpeg: list[bytes]) -> Image:
    """JPEG, PNG, ...: what OpenCV reads. A file that is not an image fails alone."""
    return [pixels(file) for file in jpeg]


def pixels(file: bytes) -> Array:
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR) if file else None
    if image is None:
        raise wherry.InvalidRequest("jpeg: not an image that can be read")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


class Detect(wherry.Model):
    """Where are lines of text? Their four corners, in reading order."""

    isolation = "thread"
    instances = CORES
    max_batch_size = 1  # pages differ in size, and a batch of equal ones gains nothing on a CPU

    def load(self, device: wherry.Device) -> None:
        self.network = network("ch_PP-OCRv4_det_infer.onnx")

    def execute(self, image: Image) -> Annotated[list[np.ndarray], wherry.FP32[-1, 4, 2]]:
        return [self.corners(one) for one in image]

    def corners(self, image: Array) -> Array:
        height, width = image.shape[:2]
        scale = min(1.0, 736 / min(height, width)) if max(height, width) > 960 else 1.0
        size = [max(32, round(side * scale / 32) * 32) for side in (width, height)]
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        (likely,) = self.network.run(None, {"x": planes(small)[np.newaxis]})
        found = boxes(likely[0, 0])
        return in_reading_order(found * np.array([width / size[0], height / size[1]], np.float32))


@wherry.model(max_batch_size=16, isolation="thread")
def cut(image: Image, corners: Annotated[np.ndarray, wherry.FP32[4, 2]]) -> Strip:
    """A line, cut out, straightened, HEIGHT pixels high."""
    return [straightened(one, points) for one, points in zip(image, corners, strict=True)]


class Direction(wherry.Model):
    """Is a line upside down? The probabilities of no and yes."""

    isolation = "thread"
    max_batch_size = 8

    def load(self, device: wherry.Device) -> None:
        self.network = network("ch_ppocr_mobile_v2.0_cls_infer.onnx")

    def execute(self, strip: Strip) -> Annotated[np.ndarray, wherry.FP32[2]]:
        (probabilities,) = self.network.run(None, {"x": padded([s[:, :192] for s in strip], 192)})
        return np.asarray(probabilities)


class Recognise(wherry.Model):
    """What does a line say?"""

    isolation = "thread"
    instances = CORES
    max_batch_size = 4  # more rows cost more than they save: the network fills a core by itself

    class Result(TypedDict):
        text: list[str]
        score: Annotated[np.ndarray, wherry.FP32]

    def load(self, device: wherry.Device) -> None:
        self.network = network("ch_PP-OCRv4_rec_infer.onnx")
        alphabet = self.network.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.characters = ["", *alphabet, " "]

    def cost(self, strip: Array) -> float:
        return float(strip.shape[1])  # padded to the widest: lines of like width share a batch

    def execute(self, strip: Strip) -> Result:
        widest = max(one.shape[1] for one in strip)
        (likely,) = self.network.run(None, {"x": padded(strip, max(64, -(-widest // 32) * 32))})
        best, score = likely.argmax(axis=2), likely.max(axis=2)
        # The network says a character for each slice of the line, 0 for none: of a run of equal
        # ones the first counts.
        new = (best != 0) & np.diff(best, axis=1, prepend=0).astype(bool)
        rows = range(len(strip))
        return {
            "text": ["".join(self.characters[c] for c in best[i, new[i]]) for i in rows],
            "score": np.array(
                [score[i, new[i]].mean() if new[i].any() else 0 for i in rows], np.float32
            ),
        }


detect, direction, recognise = Detect(), Direction(), Recognise()


class Line(TypedDict):
    text: str
    score: Annotated[float, wherry.FP32]
    corners: Annotated[np.ndarray, wherry.FP32[4, 2]]


class Page(TypedDict):
    lines: list[str]
    scores: list[float]
    corners: Annotated[np.ndarray, wherry.FP32[-1, 4, 2]]


async def read(image: Array, corners: Array) -> Line:
    strip = await cut.ainfer(image, corners)
    _, upside_down = await direction.ainfer(strip)
    if upside_down > 0.9:
        strip = np.ascontiguousarray(strip[::-1, ::-1])
    said = await recognise.ainfer(strip)
    return {"text": said["text"], "score": said["score"], "corners": corners}


@wherry.pipeline
async def ocr(jpeg: bytes) -> Page:
    """The lines of a page, all read at the same time; a page without text has none."""
    image = await decode.ainfer(jpeg)
    found = await detect.ainfer(image)
    lines = await wherry.gather(read(image, corners) for corners in found)
    lines = [line for line in lines if line["text"]]
    return {
        "lines": [line["text"] for line in lines],
        "scores": [float(line["score"]) for line in lines],
        "corners": np.array([line["corners"] for line in lines], np.float32).reshape(-1, 4, 2),
    }


@wherry.pipeline
async def ocr_lines(jpeg: bytes) -> AsyncIterator[Line]:
    """The lines in reading order, each as soon as it and those before it are read."""
    image = await decode.ainfer(jpeg)
    found = await detect.ainfer(image)
    async with wherry.in_order(read(image, corners) for corners in found) as lines:
        async for line in lines:
            if line["text"]:
                yield line
