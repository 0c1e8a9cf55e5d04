"""The chain from JPEG: three models whose rows stay on the device, as in examples/photos."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

import wherry
from examples.photos.app import Decode, Jpeg, Photos, Stage
from tools.gpu_check.models import ONE, SIDE, Resnet

Pixels = Annotated[torch.Tensor, wherry.FP32[3, SIDE, SIDE]]
Scores = Annotated[np.ndarray, wherry.FP32[1000]]


class Decoded(Decode):
    instances = ONE
    max_batch_size = 64
    max_queue_size = 4096


class Resized(Stage):
    instances = ONE
    max_batch_size = 64
    max_queue_size = 4096

    def execute(self, photo: Photos) -> Pixels:
        resize = torch.nn.functional.interpolate
        return torch.cat([resize(one[None].float(), (SIDE, SIDE)) for one in photo]).div_(255)


class Network(Resnet):
    def execute(self, image: Pixels) -> Scores:  # type: ignore[override]
        with torch.inference_mode():
            x = image.to(self.half, memory_format=torch.channels_last)
            found: np.ndarray = self.net(x).float().cpu().numpy()
        return found


decode, resize, network = Decoded(), Resized(), Network()


@wherry.pipeline
async def decoding(photo: Jpeg) -> int:
    """The first stage alone, whose photos stay where they are."""
    return int((await decode.ainfer(photo)).shape[1])


@wherry.pipeline
async def chain(photo: Jpeg) -> Scores:
    pixels = await resize.ainfer(await decode.ainfer(photo))
    found: np.ndarray = await network.ainfer(pixels)
    return found
