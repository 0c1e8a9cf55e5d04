"""core/models/row_types.py and server/natural.py: objects of declared types as rows, in and out."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import wherry
from tests.http_exchange import Client, served
from tests.pydantic_models import PydanticPerson, greet_person
from wherry.core.models.row_types import WrongRow, converter

ID = "00000000-0000-0000-0000-000000000007"


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Street:
    number: int


@dataclasses.dataclass
class Dataclass:
    name: str
    born: date
    street: Street
    colour: Colour = Colour.RED
    nick: str | None = None


class Struct(msgspec.Struct):
    name: str
    born: date
    street: Street
    colour: Literal["red"] = "red"
    nick: str | None = None


class Typed(TypedDict):
    name: str
    born: date
    street: Street


class PydanticStreet(pydantic.BaseModel):
    number: int


class Pydantic(pydantic.BaseModel):
    name: str
    born: date
    street: PydanticStreet
    colour: Colour = Colour.RED
    nick: str | None = None


class Strict(Pydantic, strict=True):
    price: Decimal = Decimal(1)
    id: UUID = UUID(int=1)


ROW = {"name": "Ann", "born": "2001-02-03", "street": {"number": 7}}
KINDS = [Dataclass, Struct, Typed, Pydantic, Strict]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_becomes_a_value_of_its_type(kind: Any) -> None:
    found = converter(kind)(ROW)
    if kind is not Typed:
        assert found.colour in (Colour.RED, "red")
        assert found.nick is None
        assert found.street.number == 7
        assert found.born == date(2001, 2, 3)
    else:
        assert found["born"] == date(2001, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        ({"street": {"number": "x"}}, "street.number", "int"),
        ({"street": 3}, "street", "object|dictionary|Pydantic"),
        ({"born": "yesterday"}, "born", "date"),
        ({"name": 7}, "name", "str"),
    ],
)
def test_what_is_wrong_with_a_row_is_told_with_its_place_and_type(
    kind: Any, change: dict[str, Any], place: str, expected: str
) -> None:
    with pytest.raises(WrongRow, match=f"{place}: .*({expected})"):
        converter(kind)({**ROW, **change})


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_missing_is_named(kind: Any) -> None:
    with pytest.raises(WrongRow, match=r"born: field required|field born|field `born`"):
        converter(kind)({"name": "Ann", "street": {"number": 1}})


def test_lists_of_pydantic_models_are_rows_too() -> None:
    (one,) = converter(list[Pydantic])([ROW])
    assert one.street.number == 7
    with pytest.raises(WrongRow, match=r"0.street.number: .* got str"):
        converter(list[Pydantic])([{**ROW, "street": {"number": "x"}}])
    assert converter(Pydantic)(one) == one


@wherry.model(max_batch_size=4, route="/age")
def age(person: list[Strict]) -> list[Strict]:
    return [one.model_copy(update={"nick": one.name[:1]}) for one in person]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(age) as client:
        yield client


def test_a_pydantic_model_is_a_body_and_an_answer(client: Client) -> None:
    answer = client.post("/age", {**ROW, "id": ID, "price": "1.50"})
    assert answer.json == {
        **ROW, "colour": "red", "nick": "A", "price": "1.50", "id": ID,
    }  # fmt: skip
    assert [one["nick"] for one in client.post("/age", [ROW, ROW]).json] == ["A", "A"]
    wrong = client.post("/age", {**ROW, "name": 7, "street": {}})
    assert wrong.status == 400
    assert wrong.error == (
        "input 'person' of model 'age': name: input should be a valid string, got int;"
        " street.number: field required"
    )


@pytest.mark.slow
def test_pydantic_models_go_to_a_worker_process_and_back() -> None:
    with wherry.Runtime(greet_person, isolation="process") as runtime:
        found = runtime.infer("greet_person", person={"name": "Ann"})
        assert found == PydanticPerson(name="ANN")
        assert runtime.infer("greet_person", person=PydanticPerson(name="Bo")).name == "BO"


@pytest.mark.slow
def test_pydantic_is_imported_by_those_alone_who_use_it() -> None:
    code = "import wherry.server.http_app, sys; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
