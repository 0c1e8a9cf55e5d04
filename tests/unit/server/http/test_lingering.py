"""How does a connection end so that the client can read its last answer?"""

from tests.unit.server.http.raw import MemoryTransport
from wherry.server.http.lingering import LingeringClose


def test_our_half_is_closed_first_where_that_is_possible() -> None:
    transport = MemoryTransport()
    LingeringClose(transport, 100).begin()
    assert (transport.half_closed, transport.is_closing()) == (True, False)
    over_tls = MemoryTransport(can_half_close=False)
    LingeringClose(over_tls, 100).begin()
    assert over_tls.is_closing()


def test_a_client_that_sends_too_much_for_nothing_is_cut_off() -> None:
    transport = MemoryTransport()
    closing = LingeringClose(transport, 100)
    closing.drop(100)
    assert not transport.is_closing()
    closing.drop(1)
    assert transport.is_closing()


def test_a_client_that_sends_what_is_not_wanted_gets_the_whole_time() -> None:
    closing = LingeringClose(MemoryTransport(), 100)
    closing.drop(1)
    assert closing.is_refused
    assert not closing.is_complete()
