"""Which responses are kept, for whom, and for how long?"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from wherry.llm.openai.response_routes import KEPT_FOR, KeptResponses, KeptTurn


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def turn(id: str, nbytes: int = 10, previous: str = "", owner: str = "") -> KeptTurn:
    return KeptTurn(id, b"r" * (nbytes - 2), b"[]", previous, owner)


def ids(turns: Sequence[KeptTurn] | None) -> list[str] | None:
    return None if turns is None else [turn.id for turn in turns]


def test_a_conversation_is_its_turns_from_the_first_one_on() -> None:
    kept = KeptResponses(100)
    for one in (turn("a"), turn("b", previous="a"), turn("c", previous="b"), turn("x")):
        kept.keep(one)
    assert ids(kept.conversation("c", "")) == ["a", "b", "c"]
    assert ids(kept.conversation("", "")) == []
    kept.remove("a")
    assert kept.conversation("c", "") is None
    assert kept.conversation("nope", "") is None


def test_a_turn_is_its_owners_alone() -> None:
    kept = KeptResponses(100)
    kept.keep(turn("a", owner="ada"))
    assert kept.find("a", "ada") is not None
    assert kept.find("a", "bob") is None
    assert kept.find("a", "") is None
    kept.keep(turn("b", previous="a", owner="bob"))
    assert kept.conversation("b", "bob") is None


def test_what_was_used_least_recently_makes_room() -> None:
    kept = KeptResponses(30)
    for name in "abc":
        kept.keep(turn(name))
    assert kept.find("a", "") is not None
    kept.keep(turn("d"))
    assert [name for name in "abcd" if kept.find(name, "")] == ["a", "c", "d"]
    kept.keep(turn("huge", 31))
    assert [name for name in "acd" if kept.find(name, "")] == ["a", "c", "d"]


def test_an_hour_after_its_last_use_a_turn_is_gone() -> None:
    clock = Clock()
    kept = KeptResponses(100, clock)
    kept.keep(turn("a"))
    kept.keep(turn("b"))
    clock.now = KEPT_FOR - 1
    assert kept.find("a", "") is not None
    clock.now = KEPT_FOR
    assert kept.find("b", "") is None
    assert kept.find("a", "") is not None
    assert len(kept) == 1


@given(st.lists(st.tuples(st.integers(2, 40), st.booleans()), max_size=40))
def test_there_is_never_more_than_may_be(steps: list[tuple[int, bool]]) -> None:
    kept, held = KeptResponses(50), dict[str, int]()
    for number, (nbytes, removes) in enumerate(steps):
        kept.keep(turn(str(number), nbytes))
        held[str(number)] = nbytes
        if removes and kept.find(str(number), ""):
            kept.remove(str(number))
        held = {name: size for name, size in held.items() if kept.find(name, "")}
        assert sum(held.values()) <= 50
        assert len(kept) == len(held)


def test_without_room_none_is_kept() -> None:
    kept = KeptResponses(0)
    kept.keep(turn("a"))
    assert not kept
    assert len(kept) == 0
