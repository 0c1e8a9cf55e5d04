"""Models of several kinds, for the test of the Grafana board: each makes other metrics move."""

import os
from collections.abc import Iterator

import wherry


@wherry.model(max_batch_size=8, isolation="thread")
def shout(text: list[str]) -> list[str]:
    return [one.upper() for one in text]


@wherry.model(isolation="thread", response_cache=True)
def remembered(text: str) -> str:
    return text


@wherry.model(isolation="thread")
def count(n: int) -> Iterator[int]:
    yield from range(n)


@wherry.model
def fragile(text: str) -> str:
    if text.startswith("die"):
        os._exit(9)
    if text == "bad":
        raise ValueError("a bad row")
    return text


class Chat(wherry.StepModel):
    """Answers n times, and tells of itself what a language model does."""

    name = "chat"
    max_batch_size = 4
    isolation = "thread"

    def load(self, device: wherry.Device) -> None:
        self.steps = 0

    def start(self, n: int) -> list[int]:
        return list(range(n))

    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        self.steps += 1
        return [wherry.Step([one.pop()], done=not one) for one in active]

    def gauges(self) -> dict[str, float]:
        names = (
            "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
            "preemptions", "steps", "step_seconds", "model_seconds",
        )  # fmt: skip
        counted = {f"{name}_total": float(self.steps) for name in names}
        return {"running": 1.0, "waiting": 1.0, "kv_cache_usage": 0.5, **counted}
