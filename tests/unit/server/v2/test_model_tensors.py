"""What is refused of a request's tensors before any of their data is looked at?"""

from pathlib import Path

import pytest

import wherry
from wherry.core.models.config import ModelConfig
from wherry.core.values.errors import InvalidRequest
from wherry.server.v2.model_tensors import MAX_PARTS, ModelTensors

SHM = Path("/dev/shm")


@wherry.model
def shout(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


@pytest.mark.parametrize("max_batch_size", [1, 32])
def test_a_request_has_the_rows_of_2048_batches_at_most(max_batch_size: int) -> None:
    config = ModelConfig(name="shout", max_batch_size=max_batch_size)
    tensors = ModelTensors(config, shout.signature())
    codec = tensors.inputs["text"]
    most = MAX_PARTS * max_batch_size
    assert tensors.rows(codec, [most], 0) == most
    with pytest.raises(InvalidRequest, match=f"'text' has {most + 1} rows, .* at most {most} "):
        tensors.rows(codec, [most + 1], 0)
