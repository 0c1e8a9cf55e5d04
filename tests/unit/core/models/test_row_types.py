from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest

from wherry.core.models.row_types import from_fields, restorer
from wherry.core.workers.encoding import copied


class Colour(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Person:
    name: str
    age: int | None = None


@dataclass
class Found:
    colour: Colour
    at: datetime.datetime
    people: list[Person]
    by_name: dict[str, Person]
    place: Place
    tags: set[str] = field(default_factory=set)


@dataclass
class Halved:
    value: float

    def __post_init__(self) -> None:
        self.value /= 2


class Tagged(TypedDict):
    person: Person


class Point(msgspec.Struct):
    x: int
    people: list[Person]


class Shouted(pydantic.BaseModel):
    text: str = pydantic.Field(alias="shoutedText")
    day: datetime.date = datetime.date(2026, 1, 2)
    raw: bytes = b"raw"
    inner: Person | None = None
    _calls: int = pydantic.PrivateAttr(default=3)

    @pydantic.field_validator("text")
    @classmethod
    def loud(cls, text: str) -> str:
        return text + "!"


FOUND = Found(
    Colour.RED,
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    [Person("a")],
    {"b": Person("b", 2)},
    Place(1, 2),
    {"t"},
)


def restored(kind: Any, value: Any) -> Any:
    made = restorer(kind)
    return value if made is None else made(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Person, Person("a", 3)),
        (Found, FOUND),
        (list[Person], [Person("a"), Person("b")]),
        (dict[str, Person], {"a": Person("a")}),
        (Person | None, Person("a")),
        (Person | None, None),
        (Person | Halved, Person("a", 3)),
        (Tagged, {"person": Person("a"), "undeclared": 1}),
        (Point, Point(1, [Person("a")])),
        (Shouted, Shouted(shoutedText="a", inner=Person("b"))),
        (list[Shouted], [Shouted(shoutedText="a")]),
        (dict, {"name": "a"}),
    ],
)
def test_what_another_process_has_returned_is_of_its_declared_type_again(
    kind: Any, value: Any
) -> None:
    again = restored(kind, copied(value))

    assert again == value
    assert type(again) is type(value)


def test_what_was_returned_is_not_validated_or_initialised_a_second_time() -> None:
    assert restored(Halved, copied(Halved(4.0))).value == 2.0
    assert restored(Shouted, copied(Shouted(shoutedText="a"))).text == "a!"


def test_private_attributes_have_their_defaults() -> None:
    assert restored(Shouted, copied(Shouted(shoutedText="a")))._calls == 3


def test_an_object_of_its_type_stays_itself() -> None:
    person = Person("a")

    assert restored(Person, person) is person


def test_an_array_in_an_object_stays_an_array() -> None:
    @dataclass
    class Vector:
        values: np.ndarray[Any, Any]

    vector = from_fields(Vector, {"values": np.arange(3)})

    assert vector.values.tolist() == [0, 1, 2]


def test_what_is_not_as_declared_stays_plain() -> None:
    assert restored(Person, "text") == "text"
    assert restored(Found, {"colour": "no colour"}) == {"colour": "no colour"}
