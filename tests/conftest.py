"""What holds for every test: it leaves nothing behind, and nothing blocks an event loop."""

import contextlib
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from tests.leaks import left_behind, snapshot
from tests.parts import paths
from wherry.core.observability.logging import severities

# A busy machine is no reason for a property to fail; a hang is pytest-timeout's to find. The same
# commit has the same result; `--hypothesis-profile=new-examples` looks for others. How many each
# property tries follows the profile (`tests.properties`).
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("check", _ANY_MACHINE, derandomize=True, max_examples=8)
settings.register_profile("quick", _ANY_MACHINE, derandomize=True, max_examples=25)
settings.register_profile("full", _ANY_MACHINE, derandomize=True)
settings.register_profile("new-examples", _ANY_MACHINE)
settings.load_profile("quick")


def _full() -> re.Pattern[str]:
    """The names of the tests in tests/full.txt."""
    names = [line for line in Path(__file__).with_name("full.txt").read_text().splitlines() if line]
    return re.compile(
        "|".join(
            re.escape(name).replace(r"\*", ".*") + r"(::.*|\[.*)?"
            for name in names
            if not name.startswith("#")
        ),
        re.DOTALL,
    )


_FULL = _full()
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without", default="", metavar="PACKAGES",
        help="as if these packages (torch,transformers) were not installed: what needs them is "
        "skipped, and nothing waits for their import",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in the background with these ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Grammars for formats of JSON schema that none here has: jsonschema makes them in 2 seconds.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    for package in filter(None, config.getoption("--without").split(",")):
        sys.modules[package] = None  # type: ignore[assignment] # as the import system has it


@pytest.hookimpl(tryfirst=True)  # before those without the mark are taken out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from run to run: tests that run side by side share their names."""
    changing = [item.nodeid for item in items if _ADDRESS.search(item.nodeid)]
    if changing:
        raise pytest.UsageError(
            "an object's address in a test's name: give it an id\n" + changing[0]
        )

    for item in items:
        if _FULL.fullmatch(item.nodeid):
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch can use"))


#: Present where NVIDIA's driver is loaded.
_DRIVER = Path("/proc/driver/nvidia/version")


@cache
def has_gpu() -> bool:
    if not _DRIVER.exists():  # importing torch takes seconds
        return False
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays: the collector would walk all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what collecting made, thousands of tests, out of each later garbage collection, and
    collect as seldom as a server does."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    # To each that does not propagate pytest attaches a handler, six times a test: torch has 56.
    for log in logging.getLogger().manager.loggerDict.values():
        if isinstance(log, logging.Logger):
            log.propagate = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay in one process. In a run of all tests those of language models do, too:
    one imports transformers, makes the checkpoints and asks for the reference's answers."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    of_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    together = tuple(str(path.relative_to(config.rootpath)) for path in paths("llm") if of_all)

    class Scheduling(LoadFileScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "llm" if file.startswith(together) else file

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Beside others, a test that passes sends one report: xdist's six messages took more than
    most tests do."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True, scope="module")
def _what_was_there_is_not_collected() -> None:
    """Servers and loads of models collect, each time: not what the tests of other files have left.

    A file or a thread in a circle is found all the same: it is there when its test ends."""
    gc.freeze()


#: What a machine may lack, as those of wherry's extras. `make test` installs all of them.
_OPTIONAL = frozenset({
    "PIL", "aiohttp", "axe_playwright_python", "cv2", "gevent", "google", "grafana_foundation_sdk",
    "griffe", "grpc", "h2", "hatchling", "hpack", "httpx", "hyperframe", "jsonschema",
    "kubernetes_validate", "llguidance", "ml_dtypes", "onnx", "onnxruntime", "openai",
    "opentelemetry", "playwright", "starlette", "tokenizers", "torch", "transformers",
    "tritonclient", "uvicorn", "yaml",
})  # fmt: skip


def _is_optional(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _OPTIONAL


class _Module(pytest.Module):
    """A file of tests, skipped as a whole where a package that it imports is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and _is_optional(missing.name):
                pytest.skip(f"needs {missing.name}, which is not here", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


@pytest.fixture(autouse=True, scope="session")
def _uvloop_has_its_pipe() -> None:
    """Its first loop makes a pipe for the whole process: the thread of a Runtime may have that."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.new_event_loop().close()


@pytest.fixture(autouse=True, scope="session")
def _the_gpu_is_open() -> None:
    """Its first use opens files, pipes and threads for the whole process."""
    if sys.modules.get("torch") is not None and has_gpu():  # else no test here uses one
        import torch

        torch.ones(8).pin_memory().to("cuda")
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, an open file or shared memory."""
    before = snapshot()
    yield
    extra = left_behind(before)
    if extra:
        pytest.fail("the test left behind:\n  " + "\n  ".join(extra), pytrace=False)


@pytest.fixture(autouse=True)
def _the_log_stays_as_it_is() -> Iterator[None]:
    """A program's log settings are the whole process's: no test changes them for the next one."""
    logs = [logging.getLogger(name) for name in (None, "asyncio", "wherry")]
    off = severities().off
    before = [(log, log.level, log.handlers[:], log.filters[:]) for log in logs]
    yield
    for log, level, handlers, filters in before:
        if log.level != level:  # setting one empties the cache of every logger there is
            log.setLevel(level)
        log.handlers[:] = handlers
        log.filters[:] = filters
    severities().off = off
    logging.captureWarnings(False)


@pytest.fixture(autouse=True, scope="session")
def _no_event_loop_is_blocked() -> Iterator[None]:
    """Raise BlockingError where wherry, inside a running event loop, waits for a file or socket."""
    with blockbuster_ctx(scanned_modules=["wherry"]) as blocking:
        # The core's locks are held for microseconds, by design; asking for one is not blocking.
        blocking.functions["threading.Lock.acquire"].deactivate()
        blocking.functions["threading.Lock.acquire_lock"].deactivate()
        # What is installed is looked up once, before a server listens.
        for function in blocking.functions.values():
            function.can_block_in("wherry/core/values/plugins.py", {"installed"})
        yield


@pytest.fixture
def _threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """A FIFO at which a model and its test meet."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)
