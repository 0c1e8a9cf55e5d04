"""/chat: who gets the page, and which models its list may have."""

from collections.abc import Sequence
from typing import Any

import wherry
from tests.http_exchange import served
from wherry.server.access.api_keys import ApiKeys


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> str:
    return str(messages[-1]["content"])


@wherry.model
def shout(text: str) -> str:
    return text.upper()


def test_the_page_is_whole_and_asks_nobody_else() -> None:
    with served(parrot, shout) as client:
        answer = client.get("/chat")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    page = answer.body.decode()
    assert "showMarkdown" in page
    assert "innerHTML" not in page


def test_without_a_model_that_chats_a_sentence_says_why_there_is_no_page() -> None:
    with served(shout) as client:
        answer = client.get("/chat")
    assert answer.status == 404
    assert answer.json["error"].startswith("/chat is not served here: no model chats")


def test_without_a_key_nobody_learns_whether_a_model_chats() -> None:
    with served(shout, keys=ApiKeys(["key-of-the-test-0123456789"])) as client:
        assert client.get("/chat").status == 200
        assert client.get("/v1/models").status == 401


def test_the_models_say_which_routes_they_are_for() -> None:
    with served(parrot, shout) as client:
        (listed,) = client.get("/v1/models").json["data"]
        assert listed["abilities"] == ["chat"]
        assert client.get("/v1/models/parrot").json == listed
