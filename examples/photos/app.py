"""Which colour has a photo? Decode, resize and network are models of their own, and the rows of all
callers stay on the device between them.

    wherry serve examples/photos/app.py
    curl 127.0.0.1:8000/colour -H 'Content-Type: image/jpeg' --data-binary @photo.jpg

JPEGs are decoded on a GPU where there is one and torchvision, else by PIL.
"""

import importlib.util
import io
from typing import Annotated

import numpy as np
import torch
from PIL import Image

import wherry

SIZE = 64  # pixels
COLOURS = ("red", "green", "blue")

Photo = Annotated[torch.Tensor, wherry.UINT8[3, None, None]]
Photos = Annotated[list[torch.Tensor], wherry.UINT8[3, None, None]]
Pixels = Annotated[torch.Tensor, wherry.FP32[3, SIZE, SIZE]]
Jpeg = Annotated[bytes, wherry.ImageSpec(max_pixels=20_000_000)]


class Stage(wherry.Model):
    """In a thread: a tensor cannot leave its process as it is."""

    isolation = "thread"
    max_batch_size = 32

    def load(self, device: wherry.Device) -> None:
        on_gpu = device.kind == "cuda" and torch.cuda.is_available()
        self.device = torch.device(str(device) if on_gpu else "cpu")


class Decode(Stage):
    def load(self, device: wherry.Device) -> None:
        super().load(device)
        has_torchvision = importlib.util.find_spec("torchvision") is not None
        self.io = importlib.import_module("torchvision.io") if has_torchvision else None

    def execute(self, jpeg: list[bytes]) -> Photos:
        if self.io is None or self.device.type == "cpu":
            return [by_pil(one).to(self.device) for one in jpeg]
        data = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in jpeg]
        try:
            photos: list[torch.Tensor] = self.io.decode_jpeg(
                data, self.io.ImageReadMode.RGB, device=self.device
            )
        except RuntimeError:  # one is not a JPEG, or of a kind that the GPU's decoder does not know
            return [by_pil(one).to(self.device) for one in jpeg]
        return photos


class Resize(Stage):
    def execute(self, photo: Photos) -> Pixels:
        small = [
            torch.nn.functional.interpolate(one[None].float(), (SIZE, SIZE), mode="bilinear")
            for one in photo
        ]
        return torch.cat(small).div_(255)


class Network(Stage):
    """Stands for a network with weights: a convolution that has one filter for each colour."""

    def load(self, device: wherry.Device) -> None:
        super().load(device)
        self.filters = torch.full((3, 3, 1, 1), -0.5, device=self.device)
        self.filters[[0, 1, 2], [0, 1, 2]] = 1.0

    def execute(self, pixels: Pixels) -> list[str]:
        scores = torch.nn.functional.conv2d(pixels, self.filters).relu_().mean((2, 3))
        return [COLOURS[place] for place in scores.argmax(1).tolist()]  # waits for the device


def by_pil(jpeg: bytes) -> torch.Tensor:
    try:
        pixels = np.array(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    except OSError as error:
        raise wherry.InvalidRequest(f"not a photo: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


decode, resize, network = Decode(), Resize(), Network()


@wherry.pipeline(route="/colour")
async def colour(photo: Jpeg) -> str:
    pixels = await resize.ainfer(await decode.ainfer(photo))
    found: str = await network.ainfer(pixels)
    return found
