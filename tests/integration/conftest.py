"""The same tests against servers with fronts: `WHERRY_FRONTS=2 pytest tests/integration`.

`wherry serve` reads the variable itself; servers of a test's own process get it here.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from wherry.server import server
from wherry.server.options import Options, from_keywords

FRONTS = int(os.environ.get("WHERRY_FRONTS", "0"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "one_process: looks into the process that serves; not run with WHERRY_FRONTS"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FRONTS and item.get_closest_marker("one_process") is not None:
            item.add_marker(pytest.mark.skip(reason="looks into the process that serves"))


@pytest.fixture(autouse=True, scope="session")
def _servers_have_fronts() -> Iterator[None]:
    def with_fronts(keywords: Mapping[str, Any]) -> Options:
        options = from_keywords(keywords)
        listen = options.listen
        return replace(options, listen=replace(listen, fronts=listen.fronts or FRONTS))

    with pytest.MonkeyPatch.context() as patch:
        if FRONTS:
            patch.setattr(server, "from_keywords", with_fronts)
        yield
