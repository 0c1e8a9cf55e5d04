"""When an event loop reads what a worker answers: a table of givings and who is chosen."""

import pytest

from wherry.instances.reading import FEW_REQUESTS, OFTEN, RETRY, Reading
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, Reader


class Loop:
    """An event loop as far as the choice goes."""

    def watch(self, file: int, turn: object) -> bool:
        return True

    def forget(self, file: int) -> None: ...


ONE, OTHER = Loop(), Loop()


def requests(reader: Reader | None, count: int = 1) -> list[InferRequest]:
    made = [InferRequest({}, 1, Reply(lambda _: None)) for _ in range(count)]
    for request in made:
        request.reader = reader
    return made


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([(ONE, 1, 0.0)], [None]),
        ([(ONE, 1, 0.0), (ONE, 1, 0.5 * OFTEN), (ONE, 1, OFTEN)], [None, ONE, ONE]),
        ([(ONE, 1, 0.0), (ONE, 1, 1.1 * OFTEN)], [None, None]),
        ([(ONE, 1, 0.0), (OTHER, 1, 0.0), (ONE, 1, 0.0)], [None, None, None]),
        ([(None, 1, 0.0), (None, 1, 0.0)], [None, None]),
    ],
    ids=["once", "often", "seldom", "in turns", "a thread waits"],
)
def test_a_loop_reads_that_often_waits(
    given: list[tuple[Reader | None, int, float]], chosen: list[Reader | None]
) -> None:
    reading = Reading()

    assert [reading.chosen(requests(who, count), now) for who, count, now in given] == chosen


def test_a_loop_reads_while_batches_are_small_on_average() -> None:
    reading = Reading()
    many = int(2 * FEW_REQUESTS)

    def chosen(count: int) -> bool:
        return reading.chosen(requests(ONE, count), 0.0) is ONE

    chosen(1)
    assert [chosen(many), chosen(1)] == [True, True]  # one large batch is no reason to change
    assert not [chosen(many) for _ in range(50)][-1]
    assert not chosen(1)
    assert [chosen(1) for _ in range(50)][-1]


def test_a_loop_that_met_with_something_else_tries_it_again_later() -> None:
    reading = Reading()
    reading.chosen(requests(ONE), 0.0)
    reading.failed(0.0)

    assert reading.chosen(requests(ONE), 0.5 * OFTEN) is None
    reading.chosen(requests(ONE), RETRY)
    assert reading.chosen(requests(ONE), RETRY) is ONE
