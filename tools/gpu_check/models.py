"""The models that the check serves: torch on one device, weights at random."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar

import numpy as np

import wherry

SMALL = bool(os.environ.get("GPU_CHECK_SMALL"))
DEVICE = "cpu" if SMALL else "cuda:0"
SIDE = 32 if SMALL else 224
ONE = (wherry.InstanceGroup(1, DEVICE),)


class OnDevice(wherry.Model):
    """A model on the device; subclasses build their network in `build`."""

    instances = ONE
    max_queue_size = 4096

    def build(self) -> Any:
        raise NotImplementedError

    def load(self, device: wherry.Device) -> None:
        import torch

        self.torch, self.device = torch, str(device)
        self.half = torch.float32 if SMALL else torch.float16
        with torch.device(self.device):
            self.net: Any = self.build()


class Classifier(OnDevice):
    """A classifier of texts with an encoder's sizes: a letter is a token."""

    isolation = "process"
    max_batch_size = 64
    sizes: ClassVar[tuple[int, int, int]]

    def build(self) -> Any:
        from torch import nn

        width, heads, layers = (32, 2, 2) if SMALL else self.sizes
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
        parts = {
            "words": nn.Embedding(50_000, width, padding_idx=0),
            "encoder": nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
            "head": nn.Linear(width, 2),
        }
        return nn.ModuleDict(parts).to(self.half).eval()

    def execute(self, text: list[str]) -> list[str]:
        torch, net = self.torch, self.net
        longest = max(map(len, text))
        ids = torch.tensor([[*map(ord, one), *[0] * (longest - len(one))] for one in text])
        with torch.inference_mode():
            ids = ids.to(self.device)
            hidden = net["encoder"](net["words"](ids), src_key_padding_mask=ids == 0)
            best = net["head"](hidden[:, 0]).argmax(-1).tolist()
        return [("bad", "good")[one] for one in best]


class Detector(Classifier):
    """RoBERTa-large's sizes."""

    sizes = (1024, 16, 24)
    max_batch_size = 32


class Sentiment(Classifier):
    """BERT-base's sizes."""

    sizes = (768, 12, 12)


Pixels = Annotated[np.ndarray, wherry.FP32[3, SIDE, SIDE]]


class Resnet(OnDevice):
    """ResNet-50 in half precision, channels last."""

    isolation = "thread"
    max_batch_size = 64

    def build(self) -> Any:
        return resnet_50().eval().to(self.half, memory_format=self.torch.channels_last)

    def execute(self, image: Pixels) -> Annotated[np.ndarray, wherry.FP32[1000]]:
        torch = self.torch
        with torch.inference_mode():
            x = torch.from_numpy(np.require(image, requirements=("C", "W"))).to(self.device)
            x = x.to(self.half, memory_format=torch.channels_last)
            found: np.ndarray = self.net(x).float().cpu().numpy()
            return found


def resnet_50() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside: int, size: int, stride: int) -> None:
            super().__init__()
            steps: list[Any] = []
            forms = ((inside, size, 1, 1), (size, size, 3, stride), (size, 4 * size, 1, 1))
            for before, after, kernel, step in forms:
                steps += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False)]
                steps += [nn.BatchNorm2d(after), nn.ReLU()]
            self.way = nn.Sequential(*steps[:-1])
            self.short = nn.Sequential()
            if inside != 4 * size:
                self.short.append(nn.Conv2d(inside, 4 * size, 1, stride, bias=False))
                self.short.append(nn.BatchNorm2d(4 * size))

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.way(x) + self.short(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, (size, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for number in range(1 if SMALL else count):
            layers.append(Block(inside, size, 2 if stage and not number else 1))
            inside = 4 * size
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Hungry(OnDevice):
    """Takes a fifth of the free memory for each row: large batches have no room."""

    isolation = "process"
    max_batch_size = 16

    def build(self) -> Any:
        return None if SMALL else self.torch.cuda.mem_get_info()[0] // 5

    def execute(
        self, x: Annotated[np.ndarray, wherry.FP32[1]]
    ) -> Annotated[np.ndarray, wherry.FP32[1]]:
        if self.net is None and len(x) > 4:
            raise MemoryError("out of memory")
        if self.net is not None:
            self.torch.empty(self.net * len(x), dtype=self.torch.uint8, device=self.device)
        return x


class Asserts(OnDevice):
    """An index out of bounds: on a GPU an assertion, after which its process is of no use."""

    isolation = "process"
    max_batch_size = 1

    def build(self) -> Any:
        return self.torch.arange(10.0)

    def execute(
        self, x: Annotated[np.ndarray, wherry.INT64[1]]
    ) -> Annotated[np.ndarray, wherry.FP32[1]]:
        found: np.ndarray = self.net[self.torch.from_numpy(x.copy()).to(self.device)].cpu().numpy()
        return found


detector, sentiment, resnet = Detector(), Sentiment(), Resnet()
hungry, asserts = Hungry(), Asserts()


@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text
