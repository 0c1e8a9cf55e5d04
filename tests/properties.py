"""How many examples does a property try?"""

from hypothesis import settings


def examples(times: float) -> settings:
    """Settings of a property that needs `times` as many examples as the profile has.

    The profiles are in `tests/conftest.py`: `make test` tries 25, `make test-full` 100.
    """
    return settings(max_examples=max(1, round(times * settings().max_examples)))
