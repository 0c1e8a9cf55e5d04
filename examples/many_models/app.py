"""How are five models served where about two of them fit?

    wherry serve examples/many_models/app.py --device-memory cpu=1500MiB

They are those of other examples, each in a process of its own: when it sleeps, its memory is free.
"""

from typing import Annotated, TypedDict

import numpy as np

import wherry
from examples.llm.app import checkpoint
from examples.ocr import app as pages
from examples.ocr.lines import Array, straightened
from examples.sentiment import app as texts
from examples.voice import app as voices
from wherry.llm import LLM


class Sentiment(texts.Sentiment):
    isolation = "process"
    instances = 1


class Embed(wherry.Model):
    """The sentence's vector, of length 1."""

    max_batch_size = 32

    def load(self, device: wherry.Device) -> None:
        texts.encoder()

    def execute(self, text: list[str]) -> Annotated[np.ndarray, wherry.FP32[384]]:
        return texts.embed(text)


class Page(wherry.Model):
    """The lines of a page: two networks and what is between them, as one model."""

    class Result(TypedDict):
        lines: list[list[str]]

    def load(self, device: wherry.Device) -> None:
        self.detect, self.recognise = pages.Detect(), pages.Recognise()
        self.detect.load(device)
        self.recognise.load(device)

    def execute(self, jpeg: list[bytes]) -> Result:
        return {"lines": [self.lines(pages.pixels(one)) for one in jpeg]}

    def lines(self, image: Array) -> list[str]:
        found = self.detect.corners(image)
        strips = [straightened(image, corners) for corners in found]
        return [self.recognise.execute([strip])["text"][0] for strip in strips]


sentiment, embed, page, speech = Sentiment(), Embed(), Page(), voices.speech
chat = LLM(checkpoint(), name="chat", max_running=4, context_tokens=512, cache_gb=0.05)
