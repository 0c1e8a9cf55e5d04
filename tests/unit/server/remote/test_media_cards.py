"""Does a front know what the bytes of a remote model's tensors hold?"""

from typing import Annotated

import msgspec
import numpy as np

import wherry
from wherry.server.remote.link_protocol import ModelCard
from wherry.server.remote.model import card_of, signature_of


class Media(wherry.Model):
    def execute(
        self,
        image: Annotated[np.ndarray, wherry.ImageSpec(mode="L", max_pixels=9, formats=("png",))],
        audio: Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=8000)],
        file: wherry.File | None = None,
    ) -> wherry.Image:
        raise NotImplementedError


def card() -> ModelCard:
    model = Media()
    return card_of(1, model, model.config(), model.signature())


def test_the_card_of_a_model_carries_kind_and_settings() -> None:
    sent = msgspec.msgpack.encode(card())

    found = signature_of(msgspec.msgpack.decode(sent, type=ModelCard))

    assert found == Media().signature()
    assert [spec.media.kind for spec in found.inputs if spec.media] == ["image", "audio", "file"]
