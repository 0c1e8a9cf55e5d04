"""Does vLLM behind wherry's front say what wherry's own engine says, token by token?

    python -m benchmarks.llm_engines [--checkpoint FOLDER] [--tokens 64]

In an environment with `wherry[vllm]` and `wherry[llm]`; vLLM's CPU build will do. The same
requests go to both, all at once, in float32 and greedy, so that there is one right answer: texts
and chats, stops, penalties, log probabilities, choices. It ends with 1 if any answer differs.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import wherry
from benchmarks.llm import checkpoint_of_the_package
from wherry.core.models.model import Model
from wherry.llm import LLM
from wherry.llm.engine.vllm_engine import VLLM

TEXTS = (
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "1, 2, 4, 8,",
    "List three colours:", "It rains in Paris 🌧️ today", "Zwei Wege führten", "SELECT name FROM",
)  # fmt: skip
CHATS = ("What is the capital of France?", "Write a haiku about autumn.", "Was ist ein Schiff?")
WISHES: tuple[dict[str, Any], ...] = (
    {"stop": ["ve s"]},
    {"stop": [" and"], "include_stop": True},
    {"stop": ["\n"], "min_tokens": 20},
    {"stop_token_ids": [28, 30]},
    {"ignore_eos": True},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"logit_bias": {"260": 5.0}},
    {"logprobs": 0},
    {"logprobs": 3},
    {"constraint": {"choice": ["yes", "no"]}},
    {"constraint": {"regex": "[0-9]{4}"}},
)
#: Largest difference between two log probabilities of the same token.
TOLERANCE = 2e-3


def requests(tokens: int) -> list[dict[str, Any]]:
    greedy = {"temperature": 0.0, "max_tokens": tokens}
    texts = [{"prompt": text, "parameters": greedy} for text in TEXTS]
    chats = [
        {"messages": [{"role": "user", "content": text}], "parameters": greedy} for text in CHATS
    ]
    wishes = [
        {"prompt": "Count: one, two, three", "parameters": {**greedy, **wish}} for wish in WISHES
    ]
    return [*texts, *chats, *wishes]


def answers(model: Model, asked: list[dict[str, Any]]) -> list[dict[int, dict[str, Any]]]:
    """Each request's answers, by their index."""
    with wherry.Runtime(model) as runtime, ThreadPoolExecutor(len(asked)) as callers:

        def call(request: dict[str, Any]) -> dict[int, dict[str, Any]]:
            found: dict[int, dict[str, Any]] = {}
            for delta in runtime.stream("chat", **request):
                one = found.setdefault(
                    delta["index"], {"text": "", "tokens": [], "reason": "", "logprobs": []}
                )
                one["text"] += delta["text"]
                one["tokens"] += [int(token) for token in delta["token_ids"]]
                one["reason"] = delta["finish_reason"]
                one["logprobs"] += delta["logprobs"]
            return found

        return list(callers.map(call, asked))


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What is not the same in two answers; "" if they are."""
    for name in ("tokens", "text", "reason"):
        if ours[name] != theirs[name]:
            return f"{name}: {ours[name]!r} here, {theirs[name]!r} there"
    for here, there in zip(ours["logprobs"], theirs["logprobs"], strict=True):
        for one, other in zip([here, *here["top"]], [there, *there["top"]], strict=True):
            if one["id"] != other["id"] or one["bytes"] != other["bytes"]:
                return f"alternatives: {one} here, {other} there"
            if abs(one["logprob"] - other["logprob"]) > TOLERANCE:
                return f"log probabilities: {one} here, {other} there"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    options = parser.parse_args()
    folder = options.checkpoint or checkpoint_of_the_package()
    asked = requests(options.tokens)
    ours = answers(LLM(folder, name="chat", dtype="float32", isolation="process"), asked)
    engine: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024}
    theirs = answers(VLLM(folder, name="chat", settings={"isolation": "process"}, **engine), asked)
    tokens = different = 0
    for request, here, there in zip(asked, ours, theirs, strict=True):
        problems = [difference(here[index], there[index]) for index in sorted(here | there)]
        tokens += sum(len(answer["tokens"]) for answer in here.values())
        different += any(problems)
        print(f"{'DIFFERS' if any(problems) else 'equal':8s}{request}")
        for problem in filter(None, problems):
            print(f"        {problem}")
    print(f"{len(asked)} requests, {tokens} tokens: {different} differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
