"""The models that the benchmarks serve."""

import time

import wherry


@wherry.model(max_batch_size=1)
def single(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=32, isolation="process")
def echo_process(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=32)
def device(text: list[str]) -> list[str]:
    """A simulated accelerator: 5 ms and 0.2 ms a row, without using the processor."""
    time.sleep(0.005 + 0.0002 * len(text))
    return text


@wherry.model(max_batch_size=8, max_queue_wait=1.0)
def slow_device(text: list[str]) -> list[str]:
    """20 ms and 2.5 ms a row; nobody is to wait for longer than a second."""
    time.sleep(0.020 + 0.0025 * len(text))
    return text


@wherry.model(max_batch_size=8, route="/size")
def size(image: list[bytes]) -> list[int]:
    """What a file costs on its way."""
    return [len(one) for one in image]
