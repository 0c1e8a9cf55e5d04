from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.workers import frames
from wherry.workers.frames import HAS_FILE, HEADER_BYTES, FrameBuffer, Garbage, put_header


def frame(body: bytes, shared_bytes: int = 0, flags: int = 0) -> bytes:
    out = bytearray(HEADER_BYTES) + body
    put_header(out, 0, shared_bytes=shared_bytes, flags=flags)
    return bytes(out)


def feed(reader: FrameBuffer, data: bytes) -> list[bytes]:
    """The frames that are there after this much has come."""
    came = []
    while data:
        with reader.space() as space:
            size = min(len(space), len(data))
            space[:size] = data[:size]
        reader.received(size)
        data = data[size:]
        while (one := reader.next()) is not None:
            came.append(bytes(one.body))
    return came


@given(
    bodies=st.lists(st.binary(max_size=50), max_size=10),
    cuts=st.lists(st.integers(0, 600), max_size=20),
)
def test_frames_arrive_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameBuffer()

    came = [body for start, stop in pairwise(at) for body in feed(reader, stream[start:stop])]

    assert came == bodies
    assert not reader.has_frame()


def test_a_frame_arrives_byte_by_byte() -> None:
    reader = FrameBuffer()

    came = [feed(reader, bytes([byte])) for byte in frame(b"ab") + frame(b"") + frame(b"c")]

    assert [body for bodies in came for body in bodies] == [b"ab", b"", b"c"]
    assert [number for number, bodies in enumerate(came) if bodies] == [13, 25, 38]


@pytest.mark.parametrize("before", [0, 1, 65_000, 70_000])
def test_a_frame_larger_than_the_buffer_arrives_behind_others(before: int) -> None:
    large = b"x" * 1_000_000
    reader = FrameBuffer()

    assert feed(reader, frame(b"b" * before) + frame(large) + frame(b"c")) == [
        b"b" * before,
        large,
        b"c",
    ]
    assert len(reader.space()) == frames._BUFFER_BYTES  # the large buffer is gone


def test_a_header_says_what_is_not_in_the_body() -> None:
    reader = FrameBuffer()
    with reader.space() as space:
        data = frame(b"abc", shared_bytes=7, flags=HAS_FILE)
        space[: len(data)] = data
    reader.received(len(data))

    assert reader.has_frame()
    one = reader.next()
    assert one is not None
    assert (one.nbytes, one.flags) == (10, HAS_FILE)


def test_garbage_is_known_by_its_header() -> None:
    with pytest.raises(Garbage):
        feed(FrameBuffer(), b"Hello, is this the log?")
    with pytest.raises(Garbage):
        feed(FrameBuffer(), frame(b"a") + b"\0" * HEADER_BYTES)


def test_a_message_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 3)

    assert frame(b"abc")
    with pytest.raises(ValueError, match="4 bytes are more than one batch may hold"):
        frame(b"abcd")
