"""Models of fixed answers, which also tell what they got."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

import wherry
from wherry.core.values.errors import PromptTooLong

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"}}</tool_call>'


class Piece(TypedDict):
    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str
    logprobs: Sequence[Mapping[str, Any]]
    usage: Mapping[str, int]
    details: Mapping[str, Any]


@wherry.model(max_batch_size=1)
def engine(
    prompt: str = "",
    messages: Sequence[dict[str, Any]] = (),
    token_ids: Sequence[int] = (),
    tools: Sequence[dict[str, Any]] = (),
    template: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    stream: bool = True,
    task: str = "generate",
) -> Iterator[Piece]:
    """Writes what its last message says: its words, thoughts, a call, an error."""
    got = {
        "prompt": prompt, "messages": list(messages), "token_ids": list(token_ids),
        "tools": list(tools), "template": template, "parameters": parameters, "stream": stream,
    }  # fmt: skip
    received = json.dumps({name: value for name, value in got.items() if value}, sort_keys=True)
    if task == "detokenize":
        yield _piece(received, reason="stop")
        return
    if task == "tokenize":
        tokens = list(range(len(received)))
        yield _piece("", tokens=tokens, reason="stop", usage={"context_tokens": 512})
        return
    last_text = str(messages[-1].get("content")) if messages else prompt
    if last_text == "blame":
        raise wherry.InvalidRequest("engine: max_tokens must be 3", field="max_tokens")
    if last_text == "long":
        raise PromptTooLong("maximum context length is 3 tokens", field="prompt")
    if last_text == "nothing":
        return
    sampling = parameters or {}
    style = {"tools": "hermes", "thoughts": "think"}
    begin = {"style": style, "prompt_tokens": 5, "prompt_token_ids": [1, 2], "prompt_logprobs": []}
    texts = {
        "think": ["<think>so", " so</think>", "Yes"],
        "call": ["Let me ", CALL[:20], CALL[20:], CALL],
        "break": ["well", ""],
        "words": ["one", " two", " three"],
    }.get(last_text, [received])
    for index in range(sampling.get("n", 1)):
        for place, text in enumerate(texts):
            last = place == len(texts) - 1
            if last_text == "break" and last:
                raise ValueError("broke")
            token = {"token": text, "id": place, "logprob": -0.5, "bytes": list(text.encode())}
            yield _piece(
                text,
                index=index,
                tokens=[place],
                reason=sampling.get("stop", ["stop"])[0] if last else "",
                logprobs=[{**token, "top": [token]}] if "logprobs" in sampling else [],
                usage={"prompt_tokens": 5, "completion_tokens": place + 1, "cached_tokens": 2}
                if last
                else {},
                details={} if place else begin,
            )


def _piece(
    text: str,
    index: int = 0,
    tokens: Sequence[int] = (),
    reason: str = "",
    logprobs: Sequence[Mapping[str, Any]] = (),
    usage: Mapping[str, int] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Piece:
    cut = reason == "length"
    stopped = {"stop_reason": reason} if reason not in ("", "stop", "length") else {}
    return {
        "index": index, "text": text, "token_ids": list(tokens),
        "finish_reason": reason if cut or not reason else "stop", "logprobs": list(logprobs),
        "usage": usage or {}, "details": {**(details or {}), **stopped},
    }  # fmt: skip


@wherry.model(max_batch_size=4)
def plain(messages: list[Sequence[dict[str, Any]]]) -> list[str]:
    """A plain model of chats."""
    return [json.dumps(one, sort_keys=True) for one in messages]


@wherry.model(max_batch_size=4)
def shout(prompt: list[str]) -> list[str]:
    """A plain model of texts."""
    return [text.upper() for text in prompt]


@wherry.model(max_batch_size=4)
def vectors(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    """A vector of each text."""
    return np.array([[len(one), -1] for one in text], np.float32)


@wherry.model(max_batch_size=4)
def scores(query: list[str], document: list[str]) -> list[float]:
    """A number for each pair."""
    return [len(a) / len(b) for a, b in zip(query, document, strict=True)]


MODELS = (engine, plain, shout, vectors, scores)
