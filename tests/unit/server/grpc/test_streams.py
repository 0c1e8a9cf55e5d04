"""server/grpc/streams.py: streams that have begun, and those that the server ended."""

import pytest

from wherry.server.grpc.frames import PROTOCOL_ERROR, STREAM_CLOSED, ConnectionFault
from wherry.server.grpc.streams import MAX_CUT, StreamIds


@pytest.mark.parametrize("stream_id", [0, 2, 4, 7])
def test_a_stream_that_the_client_has_not_begun_is_a_fault(stream_id: int) -> None:
    ids = StreamIds()
    ids.last = 5
    with pytest.raises(ConnectionFault) as caught:
        ids.check_begun(stream_id)
    assert caught.value.code == PROTOCOL_ERROR
    for begun in (1, 3, 5):
        ids.check_begun(begun)


def test_the_streams_that_were_cut_off_first_are_forgotten_first() -> None:
    ids = StreamIds()
    ids.last = 2 * (MAX_CUT + 1) + 1
    for n in range(MAX_CUT + 2):
        ids.cut_off(2 * n + 1)
    for n in range(2, MAX_CUT + 2):
        ids.check_known(2 * n + 1, "DATA")
    for n in range(2):
        with pytest.raises(ConnectionFault) as caught:
            ids.check_known(2 * n + 1, "DATA")
        assert caught.value.code == STREAM_CLOSED
