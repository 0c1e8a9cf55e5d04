"""Does a client of a front get the error that the owner has raised?"""

from typing import Annotated

import msgspec
import numpy as np
import pytest

import wherry
from wherry.core.values.errors import InvalidRequest, Overloaded, WherryError, WorkerDied
from wherry.server.fronts.encoding import CLASSES, card_of, error_of, refused, signature_of
from wherry.server.fronts.link_protocol import ModelCard
from wherry.triton.python.request_codec import UnknownModelError


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


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_crosses_with_its_class_text_and_statuses(name: str) -> None:
    cls = CLASSES[name]
    error = cls.__new__(cls)
    error.args = ("why",)
    if isinstance(error, InvalidRequest):
        error.field = None
    got = error_of(refused(1, [2], error))
    assert (type(got), str(got)) == (cls, "why")
    assert (got.http_status, got.grpc_code) == (cls.http_status, cls.grpc_code)


def test_what_an_error_says_besides_crosses_too() -> None:
    overloaded = error_of(refused(1, [2], Overloaded("later", 1.5)))
    assert overloaded.retry_after == 1.5
    invalid = error_of(refused(1, [2], InvalidRequest("no", field="x")))
    assert isinstance(invalid, InvalidRequest)
    assert invalid.field == "x"
    died = WorkerDied("gone")
    died.reached = False
    got = error_of(refused(1, [2], died))
    assert isinstance(got, WorkerDied)
    assert not got.reached


def test_an_error_of_a_class_that_fronts_do_not_know_keeps_its_statuses() -> None:
    got = error_of(refused(1, [2], UnknownModelError("odd")))
    assert (str(got), got.http_status, got.grpc_code) == ("odd", 400, "UNKNOWN")


def test_the_text_of_a_defect_stays_with_the_owner() -> None:
    got = error_of(refused(1, [2], RuntimeError("/root/secret")))
    assert type(got) is WherryError
    assert "secret" not in str(got)
