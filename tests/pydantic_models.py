"""A model with pydantic's rows, which worker processes load in tests."""

import pydantic

import wherry


class PydanticPerson(pydantic.BaseModel):
    name: str


@wherry.model(max_batch_size=4)
def greet_person(person: list[PydanticPerson]) -> list[PydanticPerson]:
    return [PydanticPerson(name=one.name.upper()) for one in person]
