"""What is done to boxes between two networks? Rows of left, top, right, bottom, and score."""

from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, np.dtype[Any]]


def pixels(image: Image.Image) -> Array:
    """As the networks were trained: columns first, -1 to 1."""
    return (np.asarray(image, np.float32).swapaxes(0, 1) - 127.5) / 128


def moved(boxes: Array, shift: Array, likely: Array) -> Array:
    """Boxes whose edges go by shares of their own width and height, with their new scores."""
    size = boxes[:, 2:4] - boxes[:, :2]
    return np.column_stack([boxes[:, :4] + shift * np.tile(size, 2), likely])


def squares(boxes: Array) -> Array:
    """The squares around boxes, in whole pixels."""
    middle = (boxes[:, :2] + boxes[:, 2:4]) / 2
    half = (boxes[:, 2:4] - boxes[:, :2]).max(axis=1, keepdims=True) / 2
    return np.column_stack([np.rint(middle - half), np.rint(middle + half), boxes[:, 4]])


def nearest(boxes: Array, overlap: float) -> Array:
    """The best of those that overlap by more than this share of what they cover together."""
    size = boxes[:, 2:4] - boxes[:, :2]
    area = size.prod(axis=1)
    left, kept = np.argsort(-boxes[:, 4]), []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(first)
        edges = np.minimum(boxes[first, 2:4], boxes[left, 2:4])
        common = (edges - np.maximum(boxes[first, :2], boxes[left, :2])).clip(0).prod(axis=1)
        left = left[common <= overlap * (area[first] + area[left] - common)]
    return boxes[kept]
