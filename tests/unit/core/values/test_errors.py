"""wherry.core.values.errors: an error is the same on the other side of a process pool."""

from __future__ import annotations

import copy
import pickle

import pytest

import wherry
from wherry.core.values import errors
from wherry.llm.openai.errors import BadField
from wherry.server.grpc.wire_numbers import Malformed


class OfAUser(wherry.ModelFailed):
    """A user's own class, with a constructor of its own."""

    def __init__(self, code: int, hint: str) -> None:
        super().__init__(f"{code}: {hint}")
        self.code = code


def given() -> list[wherry.WherryError]:
    """One of each class, made as its constructor wants it."""
    made = [
        errors.QueueFull("m", 3, 2.5),
        errors.QueueLimitExceeded("id", "m", 3),
        errors.QueueTimeout("m", 0.5),
        errors.RequestTimeoutExpired("m", 0.5),
        errors.TooManyBytes("model 'm'", "max_queue_bytes", 5, 6, 7),
        BadField("messages", "is missing"),
        OfAUser(7, "try harder"),
    ]
    special = {type(error) for error in made}
    plain = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, wherry.WherryError) and cls not in special
    ]
    return [*made, *(cls("what is wrong") for cls in (*plain, Malformed))]


@pytest.mark.parametrize("error", given(), ids=lambda error: type(error).__name__)
def test_an_error_can_be_pickled_and_copied(error: wherry.WherryError) -> None:
    error.retry_after = 4.5
    error.add_note("a worker's traceback")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
