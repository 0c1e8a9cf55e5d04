"""frontends/v2/unordered.py: the order that a C++ program of GCC's library was seen to print."""

from __future__ import annotations

from wherry.frontends.v2.unordered import in_order_of_a_hash_table


def names(count: int) -> list[str]:
    return [f"{'INPUT' if i % 3 else 'some_longer_name'}{i}" for i in range(count)]


def test_few_names_come_in_the_order_of_their_buckets() -> None:
    assert in_order_of_a_hash_table(names(5)) == FIVE
    assert in_order_of_a_hash_table(["INPUT0", "INPUT1"]) == ["INPUT1", "INPUT0"]


def test_more_names_than_buckets_are_put_into_others() -> None:
    assert in_order_of_a_hash_table(names(14)) == FOURTEEN


FIVE = ["INPUT4", "some_longer_name3", "INPUT2", "INPUT1", "some_longer_name0"]
FOURTEEN = [
    "INPUT13",
    "some_longer_name0",
    "INPUT8",
    "INPUT10",
    "INPUT1",
    "INPUT7",
    "INPUT2",
    "INPUT5",
    "some_longer_name3",
    "INPUT4",
    "some_longer_name6",
    "INPUT11",
    "some_longer_name12",
    "some_longer_name9",
]
