"""How much of their prompts do two owners of a language model find in their caches?

Chats are asked through a front that sends prompts which begin alike to the same owner, and through
one that only looks at the owners' load. A cache holds the prompts of half of the chats, or a little
more. Each front gets texts of its own, so that nothing is cached when it is called first.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, server
from benchmarks.llm import checkpoint_of_the_package
from benchmarks.peers.servers import free_ports

CALLERS = 4
#: GB of keys and values in each owner: 46 KB a token with SmolLM2-135M.
CACHE = 0.06
#: Chats that share a beginning, beginnings, and words of one.
ALIKE, BEGINNINGS, LONG = 4, 6, 200
#: Turns of a conversation, conversations, and words of what is said in one turn.
TURNS, CONVERSATIONS, SHORT = 4, 6, 40
TOKENS = 4
#: A `wherry` whose fronts only look at the load.
WITHOUT = "benchmarks.fronts.without_affinity"

#: Asks a chat, and returns what was said and the seconds.
Ask = Callable[[list[dict[str, str]]], tuple[str, float]]


def prompts(rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The share of prompt tokens that were found in a cache, once. The arguments are not used."""
    model = f"llm:{checkpoint_of_the_package()}?name=chat&threads=1&cache_gb={CACHE}"
    ports = free_ports(2)
    replicas = ",".join(f"127.0.0.1:{port}" for port in ports)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(2) as starting:
            started = starting.map(
                lambda port: stack.enter_context(server(model, "--rows-port", str(port))), ports
            )
            owners = [url for url, _ in started]
        for affinity, module in (("with", "wherry"), ("without", WITHOUT)):
            url, _ = stack.enter_context(server("--replicas", replicas, module=module))
            for name, load in (("one beginning", alike), ("one conversation", conversations)):
                before = _cache(owners)
                times = load(asking(url), texts(f"{affinity} {name}"))
                queries, hits = (b - a for a, b in zip(before, _cache(owners), strict=True))
                yield {
                    "what": f"chats of {name}, {affinity} affinity",
                    "chats": len(times),
                    "prompt tokens": round(queries),
                    "cached %": round(100 * hits / queries, 1),
                    "answered after ms, mean": round(1e3 * sum(times) / len(times)),
                    "p50 ms": round(1e3 * median(times)),
                }


def alike(ask: Ask, text: Callable[[int], str]) -> Sequence[float]:
    """Chats of which some have the same instructions before their question."""
    beginnings = [text(LONG) for _ in range(BEGINNINGS)]
    chats = [[_said("system", one), _said("user", text(8))] for one in beginnings * ALIKE]
    random.Random(0).shuffle(chats)
    with ThreadPoolExecutor(CALLERS) as pool:
        return [seconds for _, seconds in pool.map(ask, chats)]


def conversations(ask: Ask, text: Callable[[int], str]) -> Sequence[float]:
    """Each prompt is the one before with its answer and a new question, and they take turns."""
    chats = [[_said("system", "You are helpful.")] for _ in range(CONVERSATIONS)]
    times = []
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(TURNS):
            for chat in chats:
                chat.append(_said("user", text(SHORT)))
            for chat, (answer, seconds) in zip(chats, pool.map(ask, chats), strict=True):
                chat.append(_said("assistant", answer))
                times.append(seconds)
    return times


def asking(url: str) -> Ask:
    def ask(messages: list[dict[str, str]]) -> tuple[str, float]:
        body = {"model": "chat", "messages": messages, "max_tokens": TOKENS, "temperature": 0}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
        began = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        return said, time.perf_counter() - began

    return ask


def texts(seed: str) -> Callable[[int], str]:
    """So many words, others each time."""
    rng = random.Random(seed)
    words = (ROOT / "examples" / "sentiment" / "sentences.txt").read_text().split()
    return lambda count: " ".join(rng.choices(words, k=count))


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _cache(owners: Sequence[str]) -> tuple[float, float]:
    """Prompt tokens that were looked up in the caches, and those that were found."""
    found = {"queries": 0.0, "hits": 0.0}
    for url in owners:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        for what in found:
            pattern = rf"^wherry_llm_prefix_cache_{what}_total\S* (\S+)"
            found[what] += sum(map(float, re.findall(pattern, text, re.M)))
    return found["queries"], found["hits"]
