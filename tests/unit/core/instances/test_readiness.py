"""The states of one version: a table of events."""

import pytest

from wherry.core.instances.readiness import ModelState, Readiness

EVENTS = {
    "loaded": Readiness.loaded,
    "failed": lambda one: one.failed("broken"),
    "back": Readiness.is_back,
    "drain": Readiness.unloading,
    "close": Readiness.closing,
    "closed": Readiness.unloaded,
}


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ("", "LOADING", "loading"),
        ("loaded", "READY", ""),
        ("failed", "UNAVAILABLE", "broken"),
        ("failed loaded", "UNAVAILABLE", "broken"),
        ("loaded failed", "UNAVAILABLE", "broken"),
        ("loaded failed back", "READY", ""),
        ("back", "LOADING", "loading"),
        ("loaded drain", "UNLOADING", "unloading"),
        ("loaded drain failed", "UNLOADING", "unloading"),
        ("loaded drain back", "UNLOADING", "unloading"),
        ("loaded failed close", "UNAVAILABLE", "broken"),
        ("loaded failed close back", "UNAVAILABLE", "broken"),
        ("close loaded", "UNLOADING", "unloading"),
        ("loaded close closed", "UNAVAILABLE", "unloaded"),
        ("loaded close closed back", "UNAVAILABLE", "unloaded"),
    ],
)
def test_what_an_event_makes_of_a_state(events: str, state: str, reason: str) -> None:
    one = Readiness()
    for event in events.split():
        EVENTS[event](one)
    assert (one.state.value, one.reason) == (state, reason)
    assert one.takes_requests == (one.state in (ModelState.LOADING, ModelState.READY))
