"""frontends/grpc/stream_ids.py: streams that have begun, and those that the server ended."""

import pytest

from wherry.frontends.grpc.frames import PROTOCOL_ERROR, ConnectionFault
from wherry.frontends.grpc.stream_ids import MAX_CUT, StreamIds


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
    for n in range(MAX_CUT + 2):
        ids.cut_off(2 * n + 1)
    assert [n for n in range(MAX_CUT + 2) if not ids.is_cut_off(2 * n + 1)] == [0, 1]
