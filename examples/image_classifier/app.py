"""Is a picture of a line of text upside down?

    wherry serve examples/image_classifier/app.py
    curl 127.0.0.1:8000/direction -H 'Content-Type: image/jpeg' --data-binary @line.jpg

The server takes any image file, the model has PIL images: what it needs, its annotations say.
"""

from importlib.metadata import distribution
from typing import Annotated, Any, TypedDict

import numpy as np
import onnxruntime

import wherry

WIDTH, HEIGHT = 192, 48  # pixels, as the network was trained
LABELS = ("upright", "upside down")

Photo = Annotated[wherry.Image, wherry.ImageSpec(max_pixels=20_000_000)]


class Found(TypedDict):
    label: list[str]
    score: Annotated[np.ndarray, wherry.FP32]


class Direction(wherry.Model):
    """A MobileNet of 0.6 MB, out of the package rapidocr-onnxruntime, which is never imported."""

    route = "/direction"
    max_batch_size = 8

    def load(self, device: wherry.Device) -> None:
        name = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
        file = distribution("rapidocr-onnxruntime").locate_file(name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.network = onnxruntime.InferenceSession(str(file), options)

    def execute(self, image: list[Photo]) -> Found:
        (likely,) = self.network.run(None, {"x": np.stack([planes(one) for one in image])})
        best = likely.argmax(axis=1)
        return {
            "label": [LABELS[index] for index in best],
            "score": likely.max(axis=1).astype(np.float32),
        }


def planes(image: wherry.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The left of the line as the network takes it: channels first, -1 to 1, zeros on the right."""
    width = min(WIDTH, max(1, round(image.width * HEIGHT / image.height)))
    part = image.crop((0, 0, max(1, round(width * image.height / HEIGHT)), image.height))
    pixels = np.asarray(part.resize((width, HEIGHT)), np.float32) / 127.5 - 1
    found = np.zeros((3, HEIGHT, WIDTH), np.float32)
    found[:, :, :width] = np.moveaxis(pixels, -1, 0)
    return found


direction = Direction()
