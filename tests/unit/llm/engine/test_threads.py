"""Do calls that are too small to be shared leave torch's threads as they were?"""

from collections.abc import Iterator

import pytest
import torch

from wherry.llm.engine.linear import Threads


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_call_alone_has_one_thread_and_the_next_has_all() -> None:
    torch.set_num_threads(3)
    threads = Threads()
    threads.use(alone=True)
    assert torch.get_num_threads() == 1
    threads.use(alone=True)
    threads.use()
    assert torch.get_num_threads() == 3


def test_one_thread_is_never_more() -> None:
    torch.set_num_threads(1)
    threads = Threads()
    for alone in (True, False):
        threads.use(alone=alone)
        assert torch.get_num_threads() == 1
