"""Which tools is a model told of, and what do clients read of its calls?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import wherry
from tests.http_exchange import Client, served

CLOSE = {"type": "function", "name": "close", "parameters": {"type": "object"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "d", "tools": [CLOSE]}
SEARCH = {"type": "web_search", "external_web_access": False}


@wherry.model
def agent(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Calls the first tool that it is told of; with a last message of the tool, tells all calls."""
    if messages[-1]["role"] == "tool":
        calls = [call for said in messages for call in said.get("tool_calls", ())]
        yield ", ".join(call["function"]["name"] for call in calls)
        return
    call = {"name": tools[0]["function"]["name"], "arguments": {}}
    yield f"<tool_call>{json.dumps(call)}</tool_call>"


@pytest.fixture
def client() -> Iterator[Client]:
    with served(agent) as client:
        yield client


def asked(client: Client, input: Any, tools: list[dict[str, Any]], **fields: Any) -> Any:
    return client.post("/v1/responses", {"input": input, "tools": tools, **fields})


def test_a_function_of_a_namespace_is_called_by_both_names_and_told_apart(client: Client) -> None:
    answer = asked(client, "Hi", [AGENTS, CLOSE], store=False).json
    (call,) = answer["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "agents", "close")
    assert [tool["type"] for tool in answer["tools"]] == ["namespace", "function"]
    assert answer["tools"][0]["tools"][0]["name"] == "close"
    said = [{"role": "user", "content": "Hi"}, call]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
    then = asked(client, [*said, result], [AGENTS], store=False).json
    assert then["output"][0]["content"][0]["text"] == "agents__close"
    plain = asked(client, "Hi", [CLOSE, AGENTS], store=False).json["output"][0]
    assert (plain["name"], "namespace" in plain) == ("close", False)


def test_the_events_of_a_stream_name_it_likewise(client: Client) -> None:
    answer = asked(client, "Hi", [AGENTS], store=False, stream=True)
    events = [json.loads(part.split(b"data: ")[1]) for part in answer.body.split(b"\n\n") if part]
    items = [event["item"] for event in events if "item" in event]
    assert {(one["namespace"], one["name"]) for one in items} == {("agents", "close")}
    done = [one for one in events if one["type"] == "response.function_call_arguments.done"]
    assert [one["name"] for one in done] == ["close"]


def test_tools_that_a_server_would_run_are_not_offered_and_the_client_is_told(
    client: Client,
) -> None:
    answer = asked(client, "Hi", [SEARCH, CLOSE], store=False)
    assert answer.json["output"][0]["name"] == "close"
    assert answer.json["tools"] == [{**CLOSE, "description": None, "strict": None}]
    assert answer.headers["x-wherry-ignored"] == "tools[0]"


@pytest.mark.parametrize(
    ("tools", "fields", "param"),
    [
        ([SEARCH], {"tool_choice": "required"}, "tool_choice"),
        ([{"type": "local_shell"}], {}, "tools[0].type"),
        ([{"type": "function", "function": {"name": "close"}}], {}, "tools[0].name"),
        ([{**CLOSE, "parameters": {"type": "string"}}], {}, "tools[0].parameters"),
        ([{**AGENTS, "tools": [AGENTS]}], {}, "tools[0].tools[0].type"),
        ([{**AGENTS, "tools": 3}], {}, "tools[0].tools"),
        ([{**AGENTS, "tools": [CLOSE] * 1025}], {}, "tools[0].tools"),
        ([{**AGENTS, "tools": [CLOSE] * 1000}] * 2, {}, "tools"),
    ],
)
def test_what_cannot_be_offered_is_refused(
    client: Client, tools: list[dict[str, Any]], fields: dict[str, Any], param: str
) -> None:
    answer = asked(client, "Hi", tools, store=False, **fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_a_strict_server_refuses_a_tool_that_it_does_not_run() -> None:
    from wherry.server.v2.common import Common, OpenAISettings

    with served(agent, common=Common(openai=OpenAISettings(strict_fields=True))) as client:
        answer = asked(client, "Hi", [{"type": "web_search"}, CLOSE])
        assert (answer.status, answer.json["error"]["param"]) == (400, "tools[0]")
