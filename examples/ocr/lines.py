"""How are lines of text found in what a network marks, and cut out as the next one wants them?"""

import functools
from collections.abc import Sequence
from importlib.metadata import distribution
from typing import Any

import cv2
import numpy as np
import onnxruntime

HEIGHT = 48  # of a line, in pixels, as the networks were trained

Array = np.ndarray[Any, np.dtype[Any]]


def boxes(likely: Array, threshold: float = 0.3, sure: float = 0.5) -> Array:
    """The turned rectangles around regions that are text. The network marks the core of a line:
    each is grown by 1.6 times its area over its perimeter."""
    marked = (likely > threshold).astype(np.uint8)
    contours, _ = cv2.findContours(marked, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for contour in contours:
        middle, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < 3:
            continue
        x, y, w, h = cv2.boundingRect(contour)
        inside = np.zeros((h, w), np.uint8)
        cv2.fillPoly(inside, [contour - (x, y)], 1)
        if likely[y : y + h, x : x + w][inside > 0].mean() < sure:
            continue
        grown = 1.6 * width * height / (width + height)
        points = cv2.boxPoints((middle, (width + grown, height + grown), angle))
        found.append(from_top_left(points))
    return np.array(found, np.float32).reshape(-1, 4, 2)


def from_top_left(points: Array) -> Array:
    """Top left, top right, bottom right, bottom left."""
    total, difference = points.sum(axis=1), points[:, 1] - points[:, 0]
    order = [total.argmin(), difference.argmin(), total.argmax(), difference.argmax()]
    return points[order]


def in_reading_order(found: Array) -> Array:
    """From top to bottom; what stands at about the same height from left to right."""
    order = sorted(
        range(len(found)), key=lambda i: (round(found[i, :, 1].min() / 12), found[i, :, 0].min())
    )
    return found[order]


def straightened(image: Array, corners: Array) -> Array:
    top, right, bottom, left = (
        float(np.linalg.norm(corners[i] - corners[(i + 1) % 4])) for i in range(4)
    )
    width, height = max(8, round(max(top, bottom))), max(8, round(max(left, right)))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    turn = cv2.getPerspectiveTransform(np.ascontiguousarray(corners), target)
    flat = cv2.warpPerspective(image, turn, (width, height), borderMode=cv2.BORDER_REPLICATE)
    if height > 1.5 * width:  # written from top to bottom
        flat = cv2.rotate(flat, cv2.ROTATE_90_COUNTERCLOCKWISE)
        width, height = height, width
    return cv2.resize(flat, (max(8, round(width * HEIGHT / height)), HEIGHT))


def planes(images: Array) -> Array:
    """Pixels as the networks take them: channels first, -1 to 1."""
    scaled = np.moveaxis(images, -1, -3).astype(np.float32)
    scaled /= 127.5
    scaled -= 1
    return scaled


def padded(strips: Sequence[Array], width: int) -> Array:
    """Lines of different widths as one batch, grey on the right."""
    batch = np.zeros((len(strips), 3, HEIGHT, width), np.float32)
    for row, strip in zip(batch, strips, strict=True):
        row[:, :, : strip.shape[1]] = planes(strip)
    return batch


@functools.cache
def network(file: str) -> onnxruntime.InferenceSession:
    """A network out of the package rapidocr-onnxruntime, which is read and never imported.

    All instances share it: onnxruntime lets go of the GIL and may be called from several threads.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = distribution("rapidocr-onnxruntime").locate_file(f"rapidocr_onnxruntime/models/{file}")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
