"""Which step model's instance a request gets, and who runs alone."""

from typing import Any

from tests.fakes import Call
from wherry.core.instances.active_requests import ActiveRequests
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics, ResponseCount

COUNT = ResponseCount(ModelStatistics(), 0.0)


class Instance:
    uses_device, device = True, Device()


def join(active: ActiveRequests, *names: str, attempts: int = 0) -> list[Any]:
    """Let requests join as far as there is room; where each of them is."""
    places = []
    for name in names:
        request = Call(name).request
        request.attempts = attempts
        place = active.place_for(request)
        if place is not None:
            active.join(request, place, 0.0, COUNT)
        places.append(place)
    return places


def made(most: int, count: int) -> tuple[ActiveRequests, list[Any]]:
    active, instances = ActiveRequests(lambda _: most), [Instance() for _ in range(count)]
    for instance in instances:
        active.add_instance(instance)  # type: ignore[arg-type]
    return active, instances


def test_requests_join_the_emptiest_instance_until_all_are_full() -> None:
    active, (a, b) = made(2, 2)
    assert join(active, "1", "2", "3", "4", "5") == [a, b, a, b, None]
    assert not active.has_room()
    assert len(active) == 4


def test_a_request_on_trial_is_alone_until_its_first_response() -> None:
    active, (a,) = made(4, 1)
    assert join(active, "suspect", attempts=1) == [a]
    assert join(active, "other") == [None]
    (suspect,) = active.all()
    assert active.passed_trial(suspect.request)
    assert not active.passed_trial(suspect.request), "once"
    assert join(active, "other") == [a]


def test_a_request_on_trial_waits_for_an_empty_instance() -> None:
    active, (a, b) = made(4, 2)
    assert join(active, "1", "2") == [a, b]
    assert join(active, "suspect", attempts=1) == [None]
    active.leave(active.on(b)[0].request)
    assert join(active, "suspect", attempts=1) == [b]
    assert join(active, "3", "4") == [a, a]


def test_what_a_lost_instance_had_is_active_no_more() -> None:
    active, (a, b) = made(2, 2)
    join(active, "1", "2", "3")
    gone = active.remove_instance(a)
    assert [one.request.id for one in gone] == ["1", "3"]
    assert [one.instance for one in active.all()] == [b]
    assert all(active.leave(one.request) is None for one in gone)
    assert active.at(a, gone[0].key) is None
    assert not active.remove_instance(a)
