"""server/grpc/frames.py: what it writes, read by another implementation."""

import pytest
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from wherry.server.grpc import frames


def parsed(data: bytes) -> list[Frame]:
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


def test_frames_are_read_by_others_as_they_are_meant() -> None:
    settings, goaway, reset, update = parsed(
        frames.settings({frames.INITIAL_WINDOW_SIZE: 5, frames.MAX_FRAME_SIZE: 2**20})
        + frames.goaway(7, frames.PROTOCOL_ERROR, "why")
        + frames.reset(3, frames.REFUSED_STREAM)
        + frames.window_update(9, 2**31 - 1)
    )
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {4: 5, 5: 2**20}
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code, goaway.additional_data) == (7, 1, b"why")
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (3, 7)
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (9, 2**31 - 1)


@pytest.mark.parametrize("length", [1, 100, 101, 200, 950])
def test_a_long_header_block_goes_on_in_continuations(length: int) -> None:
    block = bytes(range(250)) * 4
    found = parsed(frames.header_frames(5, frames.END_STREAM, block[:length], 100))
    assert b"".join(frame.data for frame in found) == block[:length]  # type: ignore[attr-defined]
    assert [type(frame).__name__ for frame in found] == [
        "HeadersFrame",
        *["ContinuationFrame"] * (len(found) - 1),
    ]
    assert all(len(frame.data) <= 100 for frame in found)  # type: ignore[attr-defined]
    assert ["END_HEADERS" in frame.flags for frame in found] == [
        *[False] * (len(found) - 1),
        True,
    ]
    assert "END_STREAM" in found[0].flags


def test_of_a_setting_that_is_repeated_the_last_value_holds() -> None:
    payload = b"\0\x04\0\0\0\1" + b"\0\x99\0\0\0\1" + b"\0\x04\0\0\0\2"
    assert frames.read_settings(payload) == {4: 2, 0x99: 1}
