"""The fixtures that watch event loops: do they see what they must?"""

import asyncio
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

import wherry


def test_event_loops_are_in_debug_mode() -> None:
    async def debugging() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert asyncio.run(debugging())


def test_code_of_wherry_that_blocks_the_event_loop_is_caught() -> None:
    source = Path(wherry.__file__).with_name("planted.py")
    planted = compile("import time\ndef sleep(): time.sleep(0.001)", str(source), "exec")
    namespace: dict[str, object] = {}
    exec(planted, namespace)

    async def block() -> None:
        namespace["sleep"]()  # type: ignore[operator]

    with pytest.raises(BlockingError, match=r"time\.sleep"):
        asyncio.run(block())


def test_the_tests_own_code_may_block() -> None:
    async def block() -> None:
        time.sleep(0.001)  # noqa: ASYNC251

    asyncio.run(block())
