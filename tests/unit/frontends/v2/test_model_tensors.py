"""What is refused of a request's tensors before any of their data is looked at?"""

import os
from pathlib import Path

import pytest

import wherry
from wherry.frontends.v2.model_tensors import MAX_PARTS, ModelTensors
from wherry.frontends.v2.shared_memory import SharedMemory
from wherry.models.config import ModelConfig
from wherry.values.errors import InvalidRequest, RegionNotFound

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


def test_to_triton_a_window_without_a_size_has_no_bytes() -> None:
    memory = SharedMemory(allowed=True)
    config = ModelConfig(name="shout", max_batch_size=1)
    strict, other = (
        ModelTensors(config, shout.signature(), shared_memory=memory, strict=one)
        for one in (True, False)
    )
    with pytest.raises(RegionNotFound, match="Unable to find shared memory region: 'r'"):
        strict.window({"shared_memory_region": "r"}, "input 'text'")
    with pytest.raises(InvalidRequest, match=r"'shared_memory_byte_size' .required"):
        other.window({"shared_memory_region": "r"}, "input 'text'")


@pytest.mark.skipif(not SHM.is_dir(), reason="POSIX shared memory has no folder here")
def test_to_triton_no_bytes_at_the_start_of_a_region_are_none() -> None:
    memory, key = SharedMemory(allowed=True), f"wherry-test-window-{os.getpid()}"
    (SHM / key).write_bytes(bytes(8))
    try:
        memory.register("r", key, 8)
        config = ModelConfig(name="shout", max_batch_size=1)
        tensors = ModelTensors(config, shout.signature(), shared_memory=memory, strict=True)
        with pytest.raises(InvalidRequest, match=r"Invalid offset \+ byte size for .* 'r'"):
            tensors.window({"shared_memory_region": "r"}, "output 'return'")
        window = {"shared_memory_region": "r", "shared_memory_offset": 1}
        assert len(tensors.window(window, "output 'return'")) == 0
    finally:
        memory.unregister()
        (SHM / key).unlink()


def test_a_tensor_that_there_is_not_is_told_with_those_that_there_are() -> None:
    tensors = ModelTensors(ModelConfig(name="shout", max_batch_size=1), shout.signature())
    text = r"unexpected inference input 'txt' for model 'shout'; it has 'text'$"
    with pytest.raises(InvalidRequest, match=text):
        tensors.input("txt", "BYTES", {})
    with pytest.raises(InvalidRequest, match=r"output 'x' for model 'shout'; it has '\w+'$"):
        tensors.output("x")
