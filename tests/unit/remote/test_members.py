"""Does a front try the right owners, at the right times?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.remote.members import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Address,
    WantedOwners,
    address_of,
    replicas_of,
    text_of,
)
from wherry.values.errors import ConfigError

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def members(*addresses: Address) -> WantedOwners:
    made = WantedOwners(lambda: 1.0)
    made.set(addresses)
    return made


def test_what_is_wanted_is_due_once() -> None:
    both = members(A, B)
    assert both.due(0.0) == [A, B]
    assert both.due(99.0) == []
    assert both.next_at() is None


def test_attempts_that_fail_are_made_less_and_less_often() -> None:
    one = members(A)
    now, pauses = 0.0, []
    for _ in range(9):
        assert one.due(now) == [A]
        one.ended(A, now, "refused")
        next_at = one.next_at()
        assert next_at is not None
        pauses.append(next_at - now)
        assert one.due(next_at - 0.001) == []
        now = next_at
    assert pauses[0] == pytest.approx(FIRST_PAUSE)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE)
    assert pauses == sorted(pauses)


def test_a_link_that_was_up_is_tried_soon_again() -> None:
    one = members(A)
    for now in (0.0, 10.0, 20.0):
        one.due(now)
        one.ended(A, now, "refused")
    one.due(30.0)
    one.connected(A)
    one.ended(A, 40.0, "it has left")
    assert one.next_at() == pytest.approx(40.0 + FIRST_PAUSE)


def test_only_another_reason_is_news() -> None:
    one = members(A)
    assert one.ended(A, 0.0, "refused")
    assert not one.ended(A, 1.0, "refused")
    assert one.ended(A, 2.0, "no route")
    assert one.errors() == {A: "no route"}


def test_a_new_list_says_which_are_gone_and_keeps_what_is_known_of_the_others() -> None:
    three = members(A, B)
    three.due(0.0)
    assert three.set([B, C]) == {A}
    assert three.due(0.0) == [C]
    assert A not in three


def test_one_that_is_gone_and_back_is_tried_at_once() -> None:
    one = members(A)
    one.due(0.0)
    one.ended(A, 0.0, "refused")
    one.remove(A)
    one.ended(A, 0.0, "it has left")  # its link, which was up meanwhile
    one.add(A)
    assert one.due(0.0) == [A]


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "add", "remove", "up", "ended", "due"]),
                  st.sampled_from([A, B, C])),
        max_size=40,
    )
)  # fmt: skip
def test_an_address_is_never_tried_twice_at_once_and_never_forgotten(
    events: list[tuple[str, Address]],
) -> None:
    some, busy, wanted = WantedOwners(lambda: 0.0), set[Address](), set[Address]()
    for now, (event, address) in enumerate(events):
        if event == "set":
            some.set([address])
            wanted = {address}
            busy &= wanted
        elif event == "add":
            some.add(address)
            wanted.add(address)
        elif event == "remove":
            some.remove(address)
            wanted.discard(address)
            busy.discard(address)
        elif event == "up":
            some.connected(address)
        elif event == "ended":
            some.ended(address, now, "why")
            busy.discard(address)
        else:
            due = some.due(now)
            assert not busy & set(due)
            busy |= set(due)
    assert set(some.due(len(events) + LONGEST_PAUSE)) | busy == wanted


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [A]),
        ("a:1, b:1,a:1", [A, B]),
        ("[::1]:8002", [("::1", 8002)]),
        ("managed", []),
    ],
)
def test_a_list_of_addresses_is_read(text: str, addresses: list[Address]) -> None:
    assert list(replicas_of(text).addresses) == addresses


def test_a_name_is_read() -> None:
    assert replicas_of("dns:owners.default:8002").name == ("owners.default", 8002)
    assert str(replicas_of("dns:owners:8002")) == "dns:owners:8002"


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:1,,b:1", "dns:a", "::1:1"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT, as owner-1:8002"):
        replicas_of(text)


@pytest.mark.parametrize("text", ["a:1", "[::1]:8002", "10.0.0.1:1"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert text_of(address_of(text)) == text
