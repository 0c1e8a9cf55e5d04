"""Which requests of OpenAI's and Anthropic's clients are recorded?"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
ID = {"x-request-id": "client-1"}
FUNCTION = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOL = {"type": "function", "function": FUNCTION}
LARGE = "x" * 100_000
FORM = '--B\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'


Json = dict[str, Any]


class Ask(NamedTuple):
    """`$last` in a path or a body is the id of the last response that was made."""

    path: str
    body: str = ""
    headers: Mapping[str, str] = {}
    method: str = "POST"
    #: Of the server that refuses fields which it does not know.
    strict: bool = False


def asks() -> Iterator[Ask]:
    yield from _spoken()
    yield from _chats()
    yield from _texts()
    yield from _responses()
    yield from _messages()
    yield from _tokens()
    yield from _others()
    yield from _refused()


def _post(path: str, headers: Mapping[str, str] = {}, strict: bool = False, **body: Any) -> Ask:
    return Ask(path, json.dumps(body), headers, strict=strict)


def each_way(*fields: Json) -> Iterator[tuple[bool, Json]]:
    """Answered whole, and streamed."""
    return itertools.product((False, True), fields)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _spoken() -> Iterator[Ask]:
    """The same over each protocol, whole and streamed."""
    texts = ("words", "think", "call", "break", "blame", "long", "nothing", "tell")
    for text, stream in itertools.product(texts, (False, True)):
        common: Json = {"model": "engine", "stream": stream}
        function = {"type": "function", **FUNCTION}
        tool = {"name": "weather", "input_schema": FUNCTION["parameters"]}
        yield _post(CHAT, **common, messages=user(text), tools=[TOOL])
        yield _post(TEXT, ID, **common, prompt=text)
        yield _post(RESPONSES, **common, input=text, tools=[function])
        yield _post(MESSAGES, **common, messages=user(text), max_tokens=9, tools=[tool])


def _chats() -> Iterator[Ask]:
    for stream, fields in each_way(
        {"n": 2},
        {"logprobs": True, "top_logprobs": 1},
        {"return_token_ids": True},
        {"logprobs": True, "return_tokens_as_token_ids": False},
        {"stop": "length", "max_tokens": 3},
        {"stop": ["b", "c"], "include_reasoning": False},
        {"surprise": 1, "tools": [TOOL | {"more": 1}], "tool_choice": "required"},
        {"unknown": {"a": 1}},
        {"echo": False, "continue_final_message": True},
        {"temperature": 0, "top_p": 0, "seed": 3, "logit_bias": {"3": 1}, "top_k": -1},
        {"response_format": {"type": "json_object"}, "chat_template_kwargs": {"a": 1}},
        {"priority": 1},
    ):
        spoken = user("words" if stream else "tell")
        if "echo" in fields:
            spoken = [*spoken, {"role": "assistant", "content": "words"}]
        yield _post(CHAT, model="engine", messages=spoken, stream=stream, **fields)
    for options in ({"include_usage": True},
                    {"include_usage": True, "continuous_usage_stats": True}):  # fmt: skip
        body: Json = {"model": "engine", "stream": True, "stream_options": options}
        yield _post(CHAT, messages=user("words"), **body)
        yield _post(TEXT, prompt="words", **body)
    for headers in (
        ID,
        {"accept-encoding": "gzip"},
        {"x-request-timeout": "30"},
        {"x-request-timeout": "x"},
        {"x-request-id": "\n"},
    ):
        for stream in (False, True):
            yield _post(CHAT, headers, model="plain", messages=user("Hi"), stream=stream)
            yield _post(CHAT, headers, model="engine", messages=user("break"), stream=stream)
    yield _post(CHAT, model="plain", messages=user(LARGE))
    yield _post(CHAT, model="plain", messages=user("Hi"), n=2)
    yield _post(CHAT, model="plain", messages=user("Hi"), tools=[TOOL])
    yield _post(CHAT, model="engine:variant", messages=user("Hi"))
    yield _post(CHAT, messages=user("Hi"))


def _texts() -> Iterator[Ask]:
    for stream, fields in each_way(
        {"prompt": ["words", "think"], "n": 2},
        {"prompt": [[1, 2], [3]]},
        {"prompt": "words", "echo": True},
        {"prompt": "words", "logprobs": 1},
        {"prompt": "words", "return_token_ids": True, "min_tokens": 20},
        {"prompt": ["words", "break"]},
        {"prompt": ["words", "blame"], "surprise": 1},
    ):
        yield _post(TEXT, model="engine", stream=stream, **fields)
        yield _post(TEXT, model="shout", stream=stream, **fields)


def _responses() -> Iterator[Ask]:
    for stream, fields in each_way(
        {"instructions": "be brief", "metadata": {"a": "b"}, "max_output_tokens": 7},
        {"previous_response_id": "$last"},
        {"previous_response_id": "resp_x"},
        {"include": ["reasoning.encrypted_content"], "top_logprobs": 0, "surprise": 1},
        {"include": ["message.output_text.logprobs"]},
        {"store": False, "reasoning": {"effort": "low"}},
        {"tools": [{"type": "web_search"}]},
    ):
        yield _post(RESPONSES, model="engine", input="words", stream=stream, **fields)
    yield Ask(f"{RESPONSES}/$last", method="GET")
    yield Ask(f"{RESPONSES}/$last?stream=true", method="GET")
    yield Ask(f"{RESPONSES}/$last/input_items", method="GET")
    yield Ask(f"{RESPONSES}/$last", method="DELETE")
    yield Ask(f"{RESPONSES}/$last", method="GET")


def _messages() -> Iterator[Ask]:
    for stream, fields in each_way(
        {"system": "be brief", "stop_sequences": ["b"]},
        {"surprise": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"cache_control": {"type": "ephemeral"}},
        {"tool_choice": {"type": "any"}},
    ):
        body: Json = {"messages": user("words"), "max_tokens": 9, "stream": stream, **fields}
        yield _post(MESSAGES, model="engine", **body)
        yield _post(MESSAGES, ID, model="plain", **body)
    yield _post(MESSAGES, model="engine", messages=user("Hi"))
    yield _post(MESSAGES, model="nothing", messages=user("Hi"), max_tokens=1)
    yield _post(MESSAGES, model="shout", messages=user("Hi"), max_tokens=1)
    yield _post(f"{MESSAGES}/count_tokens", model="engine", messages=user("Hi"))
    yield _post(f"{MESSAGES}/count_tokens", ID, model="engine", messages=user("blame"), more=1)
    yield _post(f"{MESSAGES}/batches", model="engine")
    yield Ask(MESSAGES, "[")


def _tokens() -> Iterator[Ask]:
    yield _post("/tokenize", model="engine", prompt="Hi", return_token_strs=True)
    yield _post("/tokenize", messages=user("Hi"), surprise=1)
    yield _post("/tokenize", prompt="Hi", messages=[])
    yield _post("/tokenize", model="plain", prompt="Hi")
    yield _post("/detokenize", ID, model="engine", tokens=[1, 2])
    yield _post("/detokenize", tokens="Hi")


def _others() -> Iterator[Ask]:
    yield _post("/v1/embeddings", model="vectors", input=["a", "bc"])
    yield _post("/v1/embeddings", ID, model="vectors", input="a", surprise=1)
    yield _post("/v1/embeddings", model="vectors", input=[1])
    yield _post("/v1/rerank", model="scores", query="a", documents=["b", "cd"])
    yield _post("/v1/score", model="scores", text_1="a", text_2=["b", "cd"], more=1)
    for path in ("/v1/models", "/v1/models/engine", "/v1/models/none", "/v1/none", "/version"):
        yield Ask(path, method="GET")


def _refused() -> Iterator[Ask]:
    for path in (CHAT, TEXT, RESPONSES, MESSAGES, "/v1/embeddings", "/tokenize"):
        yield Ask(path, "{")
        yield Ask(path, "{}")
        yield Ask(path, '{"model": "none"}', ID)
        yield Ask(path, "[" * 200)
        yield Ask(path, json.dumps({"text": LARGE})[:-1])
        yield Ask(path, "{}", {"content-encoding": "gzip"})
        for strict in (False, True):
            spoken: Json = {"messages": user("words"), "prompt": "words", "input": "words"}
            yield _post(path, model="engine", **spoken, max_tokens=9, strict=strict)
    yield _post(CHAT, strict=True, model="engine", messages=user("words"), surprise=1)
    yield _post(CHAT, model="engine", messages=user("Hi"), functions=[1])
    yield _post(CHAT, model="engine", messages=[{"role": "user", "content": [{"type": "image"}]}])
    yield _post(CHAT, model="engine", messages=user("Hi"), stream_options={"include_usage": True})
