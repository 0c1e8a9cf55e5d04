"""Does a client of a front get the error that the owner has raised?"""

import pytest

from wherry.core.values.errors import InvalidRequest, Overloaded, WherryError, WorkerDied
from wherry.server.remote.errors import CLASSES, error_of, refused
from wherry.triton.python.codes import UnknownModelError


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_crosses_with_its_class_text_and_statuses(name: str) -> None:
    cls = CLASSES[name]
    error = cls.__new__(cls)
    error.args = ("why",)
    if isinstance(error, InvalidRequest):
        error.field = None
    got = error_of(refused(1, [2], error))
    assert (type(got), str(got)) == (cls, "why")
    assert (got.http_status, got.grpc_code) == (cls.http_status, cls.grpc_code)


def test_what_an_error_says_besides_crosses_too() -> None:
    overloaded = error_of(refused(1, [2], Overloaded("later", 1.5)))
    assert overloaded.retry_after == 1.5
    invalid = error_of(refused(1, [2], InvalidRequest("no", field="x")))
    assert isinstance(invalid, InvalidRequest)
    assert invalid.field == "x"
    died = WorkerDied("gone")
    died.reached = False
    got = error_of(refused(1, [2], died))
    assert isinstance(got, WorkerDied)
    assert not got.reached


def test_an_error_of_a_class_that_fronts_do_not_know_keeps_its_statuses() -> None:
    got = error_of(refused(1, [2], UnknownModelError("odd")))
    assert (str(got), got.http_status, got.grpc_code) == ("odd", 400, "UNKNOWN")


def test_the_text_of_a_defect_stays_with_the_owner() -> None:
    got = error_of(refused(1, [2], RuntimeError("/root/secret")))
    assert type(got) is WherryError
    assert "secret" not in str(got)
