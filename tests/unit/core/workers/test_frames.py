from io import BytesIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.workers import encoding
from wherry.core.workers.encoding import HAS_FILE, IS_GARBAGE, FrameBuffer, header


def frame(body: bytes, shared_bytes: int = 0, flags: int = 0) -> bytes:
    return header(len(body), shared_bytes, flags) + body


def feed(reader: FrameBuffer, data: bytes) -> list[tuple[bytes, int, int]]:
    """The frames that are there after this much has come."""
    came: list[tuple[bytes, int, int]] = []
    stream = BytesIO(data)
    while stream.tell() < len(data):
        frames = reader.read(stream.readinto)
        came += [(bytes(body), shared, flags) for body, shared, flags in frames]
    return came


def bodies_of(frames: list[tuple[bytes, int, int]]) -> list[bytes]:
    return [body for body, _, _ in frames]


@given(
    bodies=st.lists(st.binary(max_size=50), max_size=10),
    cuts=st.lists(st.integers(0, 600), max_size=20),
)
def test_frames_arrive_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameBuffer()

    came = [one for start, stop in pairwise(at) for one in feed(reader, stream[start:stop])]

    assert bodies_of(came) == bodies


def test_a_frame_arrives_byte_by_byte() -> None:
    reader = FrameBuffer()

    came = [feed(reader, bytes([byte])) for byte in frame(b"ab") + frame(b"") + frame(b"c")]

    assert bodies_of([one for frames in came for one in frames]) == [b"ab", b"", b"c"]
    assert [number for number, frames in enumerate(came) if frames] == [13, 25, 38]


@pytest.mark.parametrize("before", [0, 1, 65_000, 70_000])
def test_a_frame_larger_than_the_buffer_arrives_behind_others(before: int) -> None:
    large = b"x" * 1_000_000
    reader = FrameBuffer()

    came = feed(reader, frame(b"b" * before) + frame(large) + frame(b"c"))

    assert bodies_of(came) == [b"b" * before, large, b"c"]
    stream = BytesIO(bytes(2 * encoding._BUFFER_BYTES))
    reader.read(stream.readinto)
    assert stream.tell() == encoding._BUFFER_BYTES  # the large buffer is gone


def test_no_more_bytes_is_the_end() -> None:
    with pytest.raises(EOFError):
        FrameBuffer().read(BytesIO().readinto)


def test_a_header_says_what_is_not_in_the_body() -> None:
    assert feed(FrameBuffer(), frame(b"abc", 7, HAS_FILE)) == [(b"abc", 7, HAS_FILE)]


@pytest.mark.parametrize("garbage", [b"Hello, is this the log?", b"\0" * 12, b"\xff" * 12])
def test_garbage_is_known_by_its_header_and_frames_before_it_count(garbage: bytes) -> None:
    came = feed(FrameBuffer(), frame(b"a") + garbage)

    assert came == [(b"a", 0, 0), (garbage[:16], 0, IS_GARBAGE)]


def test_a_message_that_is_too_large_is_refused() -> None:
    assert header(3, most=3)
    with pytest.raises(ValueError, match=r"4 bytes are more than one batch may hold \(3\)"):
        header(4, most=3)


def test_a_frame_that_is_too_large_is_garbage_before_any_of_it_has_come() -> None:
    came = feed(FrameBuffer(1000), frame(b"a" * 1000) + header(1001))

    assert [flags for _, _, flags in came] == [0, IS_GARBAGE]
