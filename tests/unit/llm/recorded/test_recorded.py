"""Chats, texts, responses, messages and what is beside them: is each answer as it was recorded?

`python -m tests.unit.llm.recorded.test_recorded` writes answers.json anew, for a change that is
meant: its diff is what clients see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.http_exchange import Client, MemoryExchange, served
from tests.unit.llm.recorded.recorded_models import MODELS
from tests.unit.llm.recorded.recorded_requests import Ask, asks
from wherry.server.v2.common import Common, OpenAISettings

ANSWERS = Path(__file__).with_name("answers.json")
#: What differs each time, and what stands for it.
CHANGING = (
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{12}-[0-9a-f]+"), "ID"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"), "OWN"),
    (re.compile(r"(call|toolu)_[0-9a-f]{24}"), r"\1_NUMBER"),
    (re.compile(r'("created(?:_at)?":)(?:\d+|"[^"]*")'), r"\1TIME"),
    (re.compile(r'("version":)"[^"]*"'), r'\1"VERSION"'),
)


def test_each_answer_is_as_it_was_recorded() -> None:
    recorded = json.loads(ANSWERS.read_text())
    changed = [
        f"{now['ask']}\n  was {then}\n  is  {now}"
        for then, now in zip(recorded, answers(), strict=True)
        if then != now
    ]
    assert not changed, "\n".join(changed)


def answers() -> Iterator[dict[str, Any]]:
    kept = OpenAISettings(max_kept_responses=2**20)
    strict = OpenAISettings(strict_fields=True)
    with (
        served(*MODELS, common=Common(openai=kept)) as client,
        served(*MODELS, common=Common(openai=strict)) as other,
    ):
        last = ""
        for ask in asks():
            exchange = _sent(other if ask.strict else client, ask, last)
            if found := re.search(rb'"id":"(resp_[0-9a-f]{32})"', exchange.body):
                last = found[1].decode()
            yield {"ask": _shown(ask), **_as_recorded(exchange)}


def _sent(client: Client, ask: Ask, last: str) -> MemoryExchange:
    path, body = (part.replace("$last", last) for part in (ask.path, ask.body))
    return client.ask(ask.method, path, body.encode(), ask.headers)


def _shown(ask: Ask) -> str:
    headers = " ".join(f"{name}:{value!r}" for name, value in ask.headers.items())
    body = re.sub("x{99,}", "xx...", ask.body)
    return f"{ask.method} {ask.path} {headers} {body}" + " strict" * ask.strict


def _as_recorded(exchange: MemoryExchange) -> dict[str, Any]:
    body = exchange.body.decode("latin-1")
    if "content-encoding" in exchange.headers:
        body = "compressed"
    headers = json.dumps(dict(sorted(exchange.headers.items())))
    for pattern, name in CHANGING:
        body, headers = pattern.sub(name, body), pattern.sub(name, headers)
    return {
        "status": exchange.status,
        "type": exchange.content_type,
        "headers": json.loads(headers),
        "body": re.sub("x{99,}", "xx...", body),
    }


def main() -> None:
    lines = ",\n".join(json.dumps(one) for one in answers())
    ANSWERS.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
