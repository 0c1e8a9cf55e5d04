"""Where does a large body go while it is read?"""

from wherry.frontends.http.large_body import LargeBody


def test_what_is_added_and_what_is_read_in_place_lie_one_behind_the_other() -> None:
    body = LargeBody(6)
    body.add(b"ab")
    assert len(body.rest) == 4
    body.rest[:3] = b"cde"
    body.received += 3
    body.add(b"f")
    assert (bytes(body.data), body.received, len(body.rest)) == (b"abcdef", 6, 0)
    assert not body.data.readonly
