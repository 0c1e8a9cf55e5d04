"""What the loads of owners come to, before the scaling sees them."""

import pytest

from wherry.deploy.autoscale import fullest, pool_load
from wherry.deploy.scaling import PoolLoad
from wherry.remote.router import OwnerLoad
from wherry.values.load import Load


def load(instances: int, busy: int, full_rows: int = 4) -> Load:
    return Load(ready=True, instances=instances, busy=busy, full_rows=full_rows)


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ([], PoolLoad(0, 0.0, 0.0, 0)),
        ([OwnerLoad(load(2, 1), 0.2, 3)], PoolLoad(1, 0.2, 0.5, 3, 8)),
        (
            [OwnerLoad(load(1, 1), 0.4, 6), OwnerLoad(load(1, 0), 0.0, 0)],
            PoolLoad(2, 0.2, 0.5, 6, 4),
        ),
        # Its last report was made while it ran; nothing is there any more.
        ([OwnerLoad(load(1, 1), 0.0, 0)], PoolLoad(1, 0.0, 0.0, 0, 4)),
        # Rows were sent that it has not reported yet.
        ([OwnerLoad(load(1, 0), 0.0, 1)], PoolLoad(1, 0.0, 1.0, 1, 4)),
    ],
)
def test_the_load_of_a_pool_is_that_of_its_owners(
    owners: list[OwnerLoad], expected: PoolLoad
) -> None:
    assert pool_load(owners) == expected


def test_of_several_models_the_fullest_counts() -> None:
    small, large = PoolLoad(2, 0.1, 0.2, 6, 2), PoolLoad(2, 0.3, 0.1, 8, 32)
    assert fullest([small, large]) == PoolLoad(2, 0.3, 0.2, 6, 2)
    assert fullest([]) == PoolLoad(0, 0.0, 0.0, 0)
