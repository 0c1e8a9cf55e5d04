"""A cost test that cannot fail holds nothing: the judge of costs is judged here."""

import re

import pytest

from tests import costs
from tests.costs import assert_linear


def test_a_linear_cost_passes() -> None:
    assert_linear(lambda text: text.upper().count("A"), lambda n: "a" * n, largest=2**24)


@pytest.mark.slow
def test_a_quadratic_cost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "TRIES", 2)  # the fourth takes 64 times as long as the first
    # From every quote, the whole rest is searched for an end that is not there.
    string = re.compile(r'"[^x]*x')
    with pytest.raises(AssertionError, match="times the CPU"):
        assert_linear(lambda text: string.sub("", text), lambda n: '"' * n)


def test_what_is_refused_early_passes() -> None:
    assert_linear(lambda _: None, lambda n: b"\0" * n)
