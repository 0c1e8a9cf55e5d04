"""How is an image made in steps, for many callers at once? Each comes and goes between two steps.

wherry serve app.py
curl -N 127.0.0.1:8000/v2/models/draw/generate_stream -d '{"digit": 3, "every": 8}'
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import wherry

Pixels = Annotated[np.ndarray, wherry.UINT8[8, 8]]


@dataclass
class Drawing:
    pixels: Tensor  # noise at first, -1 to 1 at last
    digit: int
    steps: int
    every: int
    done: int = 0

    def moved_to(self, pixels: Tensor) -> wherry.Step[Pixels]:
        self.pixels, self.done = pixels, self.done + 1
        ends = self.done == self.steps
        image = ((pixels.clamp(-1, 1) + 1) * 127.5).byte().numpy().reshape(8, 8)
        return wherry.Step([image] if ends or self.done % self.every == 0 else [], done=ends)


class Draw(wherry.StepModel):
    """A diffusion model of digits, trained here in a few seconds."""

    max_batch_size = 64  # drawings at a time; more wait
    examples = ({"digit": 3},)

    def load(self, device: wherry.Device) -> None:
        self.network = nn.Sequential(
            nn.Linear(64 + 10 + 2, 256),
            nn.SiLU(),
            nn.Linear(256, 256),
            nn.SiLU(),
            nn.Linear(256, 64),
        )
        train(self.network)

    def start(self, digit: int, steps: int = 40, seed: int = 0, every: int = 1000) -> Drawing:
        if not (0 <= digit <= 9 and 1 <= steps <= 1000 and every >= 1):
            raise wherry.InvalidRequest("digit: 0 to 9; steps: 1 to 1000; every: from 1 on")
        noise = torch.randn(64, generator=torch.Generator().manual_seed(seed))
        return Drawing(noise, digit, steps, every)

    @torch.inference_mode()
    def step(self, active: list[Drawing]) -> Sequence[wherry.Step[Pixels]]:
        """One call of the network for all, wherever each of them is."""
        noisy = torch.stack([one.pixels for one in active])
        width = math.pi / 2 / torch.tensor([[one.steps] for one in active])
        now = width * torch.tensor([[one.steps - one.done] for one in active])
        clean = guess(self.network, noisy, now, torch.tensor([one.digit for one in active]))
        noise = (noisy - now.cos() * clean) / now.sin()
        later = (now - width).cos() * clean + (now - width).sin() * noise
        return [one.moved_to(row) for one, row in zip(active, later, strict=True)]


def guess(network: nn.Module, noisy: Tensor, angle: Tensor, digit: Tensor) -> Tensor:
    """The clean image behind a noisy one. `angle`: 0 is clean, a right angle is noise alone."""
    marks = nn.functional.one_hot(digit, 10)
    clean: Tensor = network(torch.cat([noisy, marks, angle.cos(), angle.sin()], dim=1))
    return clean


def train(network: nn.Module, rounds: int = 1200) -> None:
    torch.set_num_threads(1)  # for so small a network more would only wait for each other
    torch.manual_seed(0)
    data = load_digits()
    images, digits = torch.tensor(data.data / 8 - 1).float(), torch.tensor(data.target)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(rounds):
        rows, angle = torch.randint(len(images), (128,)), torch.rand(128, 1) * math.pi / 2
        noisy = angle.cos() * images[rows] + angle.sin() * torch.randn(128, 64)
        loss = (guess(network, noisy, angle, digits[rows]) - images[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


draw = Draw()
