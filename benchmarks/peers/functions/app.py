"""The function models that the peers are compared on: texts in, texts out."""

import time

import wherry


@wherry.model(max_batch_size=1, isolation="process")
def single(text: list[str]) -> list[str]:
    """Return one text at a time: hello."""
    return text


@wherry.model(max_batch_size=32, isolation="process")
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=1, isolation="thread")
def single_thread(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=32, isolation="thread")
def echo_thread(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=32, isolation="process")
def device(text: list[str]) -> list[str]:
    """Simulate an accelerator: 5 ms and 0.2 ms a row, without using the processor."""
    time.sleep(0.005 + 0.0002 * len(text))
    return text


@wherry.model(max_batch_size=4, max_queue_delay=0.010, isolation="process")
def four(text: list[str]) -> list[str]:
    """Seed S3's table of adaptive batching."""
    return text


@wherry.model(max_batch_size=4, max_queue_delay=0.010, isolation="thread")
def four_thread(text: list[str]) -> list[str]:
    return text
