"""server/v2/shared_memory.py: memory of a client on this machine, by name."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from wherry.core.values.errors import InvalidRequest, Unsupported
from wherry.server.v2.shared_memory import MAX_REGIONS, SharedMemory

SHM = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="POSIX shared memory has no folder here")


@pytest.fixture
def key() -> Iterator[str]:
    """An object of 100 bytes: 0, 1, ..., 99."""
    name = f"wherry-test-{os.getpid()}-{threading.get_ident()}"
    (SHM / name).write_bytes(bytes(range(100)))
    yield name
    (SHM / name).unlink(missing_ok=True)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(allowed=True)
    yield memory
    memory.unregister()


def test_what_a_client_wrote_is_read_where_it_lies(memory: SharedMemory, key: str) -> None:
    memory.register("r", f"/{key}", 50, 10)
    view = memory.window("r", 5, 3, "input 'x'").read()
    assert bytes(view) == b"\x0f\x10\x11"
    assert view.readonly
    (SHM / key).write_bytes(b"x" * 100)  # the same object: written in place
    assert bytes(view) == b"xxx"


def test_what_is_written_is_the_clients_to_read(memory: SharedMemory, key: str) -> None:
    memory.register("r", key, 50, 10)
    memory.window("r", 5, 4, "output 'x'").write(b"abc")
    assert (SHM / key).read_bytes()[14:20] == b"\x0eabc\x12\x13"
    memory.window("r", 0, 4, "output 'x'").write(np.array([1], np.float32).data.cast("B"))
    assert (SHM / key).read_bytes()[10:14] == np.float32(1).tobytes()
    memory.window("r", 0, 0, "output 'x'").write(b"")


def test_more_than_the_window_holds_is_not_written(memory: SharedMemory, key: str) -> None:
    memory.register("r", key, 100)
    with pytest.raises(InvalidRequest, match=r"output 'x': the tensor has 4 bytes, .* is 3"):
        memory.window("r", 0, 3, "output 'x'").write(b"abcd")
    assert (SHM / key).read_bytes() == bytes(range(100))


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 51), (50, 1), (49, 2), (-1, 2), (2**70, 1), (0, -1), (51, 0), (50, 0)]
)
def test_a_window_lies_within_its_region(
    memory: SharedMemory, key: str, offset: int, size: int
) -> None:
    memory.register("r", key, 50, 50)
    with pytest.raises(InvalidRequest, match=r"input 'x': Invalid offset .*'r'"):
        memory.window("r", offset, size, "input 'x'")


def test_a_window_outlives_its_region_and_the_object_s_name(memory: SharedMemory, key: str) -> None:
    memory.register("r", key, 100)
    window = memory.window("r", 0, 100, "input 'x'")
    array = np.frombuffer(window.read(), np.uint8)
    memory.unregister()
    (SHM / key).unlink()
    assert array.tolist() == list(range(100))
    window.write(b"still mine")
    assert array[:10].tobytes() == b"still mine"


def test_an_object_that_was_made_smaller_is_not_touched(memory: SharedMemory, key: str) -> None:
    """It would end the process."""
    memory.register("r", key, 100)
    window = memory.window("r", 0, 100, "input 'x'")
    os.truncate(SHM / key, 10)
    with pytest.raises(InvalidRequest, match=r"input 'x': .* smaller than when it was reg"):
        window.read()
    with pytest.raises(InvalidRequest, match="smaller"):
        window.write(b"a" * 100)


@pytest.mark.parametrize(
    ("size", "offset", "text"),
    [
        (101, 0, "has 100 bytes, but offset and byte_size need 101"),
        (1, 100, "need 101"),
        (2**70, 0, "has 100 bytes"),
        (0, 0, "byte_size must be at least 1"),
        (-1, 0, "byte_size must be at least 1"),
        (1, -1, "offset at least 0"),
    ],
)
def test_a_region_lies_within_its_object(
    memory: SharedMemory, key: str, size: int, offset: int, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        memory.register("r", key, size, offset)
    assert memory.status() == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "not a name of a shared memory object"),
        ("/", "not a name"),
        ("..", "not a name"),
        ("/.", "not a name"),
        ("../etc/passwd", "not a name"),
        ("a/b", "not a name"),
        ("a\0b", "not a name"),
        ("\udcff", "Unable to open"),
        ("x" * 300, "Unable to open"),
        ("/nobody-made-this", "Unable to open shared memory region: 'r' .*no such file"),
        ("/triton_python_backend_shm_region_1", "reserved"),
        ("torch_1_2", "reserved"),
        ("sem.mine", "reserved"),
    ],
)
def test_a_key_that_cannot_be_meant_is_refused(memory: SharedMemory, key: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        memory.register("r", key, 1)


def test_what_is_no_memory_is_refused(memory: SharedMemory, key: str) -> None:
    (SHM / key).unlink()
    os.mkfifo(SHM / key)
    with pytest.raises(InvalidRequest, match="'r'"):
        memory.register("r", key, 1)
    (SHM / key).unlink()
    (SHM / key).symlink_to("/etc/passwd")
    with pytest.raises(InvalidRequest, match="Unable to open"):
        memory.register("r", key, 1)


def test_a_name_has_a_reasonable_length(memory: SharedMemory, key: str) -> None:
    with pytest.raises(InvalidRequest, match="at most 255 characters"):
        memory.register("x" * 256, key, 1)


def test_a_region_may_have_no_name_as_in_triton(memory: SharedMemory, key: str) -> None:
    memory.register("", key, 1)
    assert [region.name for region in memory.status()] == [""]


def test_regions_are_bounded(
    memory: SharedMemory, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_REGIONS == 1024
    monkeypatch.setattr("wherry.server.v2.shared_memory.MAX_REGIONS", 2)
    memory.register("a", key, 1)
    memory.register("b", key, 1)
    with pytest.raises(InvalidRequest, match="2 shared memory regions are registered"):
        memory.register("c", key, 1)


def test_nothing_is_shared_unless_the_operator_allows_it(key: str) -> None:
    memory = SharedMemory()
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        memory.register("r", key, 1)
    with pytest.raises(Unsupported, match="input 'x': shared memory is not allowed"):
        memory.window("r", 0, 1, "input 'x'")
    assert memory.status() == []
    memory.unregister()
