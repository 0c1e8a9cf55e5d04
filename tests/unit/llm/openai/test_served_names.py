"""What do clients call a model that has names of the hub, or of somebody else's model?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, served
from wherry.core.values.errors import ConfigError
from wherry.llm.engine.choice import hub_names

HUB, CLAUDE = "org/Model-1B", "claude-sonnet-4@20250514"


@wherry.model(served_names=(HUB, CLAUDE))
def tell(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield str(messages[-1]["content"])


@wherry.model(served_names="intfloat/e5:small")
def embed(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.ones((len(text), 2), np.float32)


@pytest.fixture
def client() -> Iterator[Client]:
    with served(tell, embed) as client:
        yield client


def asked(client: Client, path: str, model: str | None, **fields: Any) -> Any:
    body = fields if model is None else {"model": model, **fields}
    answer = client.post(path, body)
    assert answer.status == 200, answer.body
    return answer.json


SAID = [{"role": "user", "content": "Hi"}]
CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/responses": {"input": "Hi"},
}


@pytest.mark.parametrize("path", CHATS)
def test_a_model_answers_to_each_of_its_names_and_is_called_as_it_was_asked_for(
    client: Client, path: str
) -> None:
    for name in (HUB, CLAUDE, "tell"):
        assert asked(client, path, name, **CHATS[path])["model"] == name
    unknown = client.post(path, {"model": "org/Other", **CHATS[path]})
    assert unknown.status == 404
    message = unknown.json["error"]["message"]
    assert message.endswith(f"there are: {CLAUDE}, intfloat/e5:small, {HUB}")


def test_a_model_that_is_not_named_is_called_by_its_first_served_name(client: Client) -> None:
    assert asked(client, "/v1/chat/completions", None, messages=SAID)["model"] == HUB
    assert asked(client, "/v1/embeddings", None, input="a")["model"] == "intfloat/e5:small"
    assert asked(client, "/v1/embeddings", "embed", input="a")["model"] == "embed"


def test_a_chat_finds_the_models_as_they_are_now(client: Client) -> None:
    @wherry.model(name="tell")
    def other(messages: Sequence[dict[str, Any]]) -> str:
        return "other"

    def said() -> str:
        answer = asked(client, "/v1/chat/completions", "tell", messages=SAID)
        return str(answer["choices"][0]["message"]["content"])

    assert [said(), said()] == ["Hi", "Hi"]
    client.runtime.load(other)
    assert [said(), said()] == ["other", "other"]
    client.runtime.unload("tell")
    gone = client.post("/v1/chat/completions", {"model": "tell", "messages": SAID})
    assert gone.status == 404


def test_clients_are_told_of_served_names_in_their_order(client: Client) -> None:
    listed = client.ask("GET", "/v1/models").json["data"]
    assert [(one["id"], one["root"]) for one in listed] == [
        ("intfloat/e5:small", "embed"), (HUB, "tell"), (CLAUDE, "tell"),
    ]  # fmt: skip
    for name in (HUB, "tell"):
        assert client.ask("GET", f"/v1/models/{name}").json["id"] == name
    assert client.ask("GET", "/v1/models/org").status == 404


def test_other_protocols_have_the_own_name_alone(client: Client) -> None:
    assert client.ask("GET", "/v2/models/tell").status == 200
    assert client.ask("GET", f"/v2/models/{HUB}").status == 404


@pytest.mark.parametrize("name", ["", "/a", "a b", "a\n", "a?b", "é", "a" * 257])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="served_names"):
        tell.config(served_names=(name,))


def test_a_checkpoint_of_the_hub_is_called_by_its_id_unless_a_name_is_said(tmp_path: Path) -> None:
    assert hub_names("org/Model-1B", "") == ("org/Model-1B",)
    assert hub_names("org/Model-1B", "chat") == ()
    assert hub_names(str(tmp_path), "") == ()
    assert tell.config(served_names="a/b,c").served_names == ("a/b", "c")


def test_no_two_models_have_a_name(client: Client) -> None:
    @wherry.model
    def other(x: int) -> int:
        return x

    for name in (HUB, "embed"):
        with pytest.raises(ConfigError, match=r"same served name '.*' as model"):
            client.runtime.load(other, served_names=(name,))
    client.runtime.load(other, served_names=("org/new",))
    with pytest.raises(ConfigError, match=r"same served name 'other' as model 'other'"):
        client.runtime.load(tell, served_names=("other",))


@dataclass
class Answer:
    text: str
    token_ids: list[int]
    usage: dict[str, int]


@wherry.model
def clever(prompt: str, task: str = "generate") -> Iterator[Answer]:
    """Tells its context to whom asks for tokens, and how often it was asked."""
    clever_asked.append(task)
    yield Answer("", [1], {"context_tokens": 512} if len(clever_asked) > 1 else {})


clever_asked: list[str] = []


def test_a_models_context_is_listed_once_it_has_told_it_and_asked_no_more() -> None:
    clever_asked.clear()
    with served(tell, clever) as client:
        listed = [client.ask("GET", "/v1/models").json["data"] for _ in range(4)]
        assert client.ask("GET", "/v1/models/clever").json["max_model_len"] == 512
    told = [[one.get("max_model_len") for one in names] for names in listed]
    assert told == [[None] * 3, *[[512, None, None]] * 3]
    assert clever_asked == ["tokenize"] * 2
