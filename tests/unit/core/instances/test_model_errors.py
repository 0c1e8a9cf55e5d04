"""core/instances/model_errors.py: what a model raises ends its request, and no instance with it."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.core.instances.model_errors import model_errors, parent_decides


class Panic(BaseException):
    """As a library in Rust raises it: pyo3's PanicException is not an Exception."""


def passes(raised: BaseException) -> bool:
    """Whether it is not the model's."""
    try:
        try:
            raise raised
        except model_errors():
            return False
    except BaseException:  # noqa: BLE001 - whichever it was given
        return True


def test_in_a_thread_of_an_instance_all_that_is_raised_is_the_models() -> None:
    with ThreadPoolExecutor(1) as pool:
        for raised in (Panic(), KeyboardInterrupt(), GeneratorExit(), SystemExit(), ValueError()):
            assert not pool.submit(passes, raised).result()


def test_in_the_main_thread_the_programs_own_signal_handlers_raise() -> None:
    assert passes(KeyboardInterrupt())
    assert passes(Panic())  # a test's timeout is one, too
    assert not passes(SystemExit())
    assert not passes(ValueError())


def test_in_a_workers_main_thread_there_are_no_such_handlers() -> None:
    before = signal.signal(signal.SIGINT, parent_decides)
    try:
        assert not passes(KeyboardInterrupt())
        assert not passes(Panic())
    finally:
        signal.signal(signal.SIGINT, before)


@wherry.model(max_batch_size=8)
def panics(text: list[str]) -> list[str]:
    if "panic" in text:
        raise Panic("at the disco")
    return text


@wherry.pipeline
async def flow(text: str) -> str:
    if text == "panic":
        raise Panic("at the disco")
    return text


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_panic_is_the_models_failure_and_costs_neither_neighbours_nor_the_instance(
    isolation: str,
) -> None:
    rows = ["a", "b", "panic", "c"] * 2
    overrides: dict[str, Any] = {"panics": {"isolation": isolation}}
    with (
        wherry.Runtime(panics, overrides=overrides) as runtime,
        ThreadPoolExecutor(len(rows)) as pool,
    ):
        calls = [pool.submit(runtime.infer, "panics", row, timeout=TIMEOUT) for row in rows]
        for row, call in zip(rows, calls, strict=True):
            if row != "panic":
                assert call.result(TIMEOUT) == row
                continue
            with pytest.raises(wherry.ModelFailed, match="'panics' failed: Panic: at the disco"):
                call.result(TIMEOUT)


def test_a_panic_in_a_pipeline_is_its_failure() -> None:
    with wherry.Runtime(flow) as runtime:
        with pytest.raises(wherry.ModelFailed, match="'flow' failed: Panic: at the disco"):
            runtime.infer("flow", "panic", timeout=TIMEOUT)
        assert runtime.infer("flow", "a") == "a"


def test_a_panic_while_loading_is_a_failed_load() -> None:
    class Broken(wherry.Model):
        def load(self, device: wherry.Device) -> None:
            raise Panic("no weights")

        def execute(self, text: list[str]) -> list[str]:
            return text

    runtime = wherry.Runtime(Broken())
    with pytest.raises(wherry.WherryError, match="'broken' could not be loaded: Panic: no weights"):
        runtime.start()
    runtime.close()
