"""server/dashboard/routes.py: what a browser shows."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import wherry
from tests.http_exchange import served
from wherry.server.access.api_keys import ApiKeys


@wherry.model(examples=[{"text": "</script><b>bold</b>"}])
def echo(text: str) -> str:
    return text


class Links(HTMLParser):
    """Everything that a page would fetch or point to, and its event attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.inline_handlers: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value is not None:
                self.targets.append(value)
            if name.startswith("on") or name == "style":
                self.inline_handlers.append(f"{tag} {name}")


def test_the_page_is_html_and_loads_nothing_from_elsewhere() -> None:
    with served(echo) as client:
        answer = client.get("/")

    assert answer.status == 200
    assert answer.content_type == "text/html; charset=utf-8"
    links = Links(answer.body.decode())
    assert [one for one in links.targets if not one.startswith("#")] == [
        "data:,", "docs", "chat", "metrics", "v2/models/stats", "dashboard/numbers", "v2/models",
    ]  # fmt: skip
    # The name of SVG's elements, and where uPlot is from.
    named = re.findall(r"https?://[\w./]+", answer.body.decode())
    assert named == ["https://github.com/leeoniya/uPlot", "http://www.w3.org/2000/svg"]


def test_every_address_is_relative_so_that_the_page_works_under_a_prefix() -> None:
    with served(echo) as client:
        html = client.get("/").body.decode()

    assert re.findall(r"""fetch\((?!base \+)""", html) == []
    assert re.findall(r"""["'`]/(v1|v2|dashboard)""", html) == []


def test_its_policy_allows_its_own_style_and_script_and_nothing_else() -> None:
    with served(echo) as client:
        answer = client.get("/")

    html, policy = answer.body.decode(), answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for element in ("style", "script"):
        contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        assert len(contents) == 1
        digest = base64.b64encode(hashlib.sha256(contents[0].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert Links(html).inline_handlers == []
    assert not re.search("innerHTML|outerHTML|insertAdjacent|document.write|eval", html)
    assert "require-trusted-types-for 'script'" in policy


def test_the_page_itself_needs_no_key_and_tells_nothing() -> None:
    with served(echo, keys=ApiKeys(["key-of-the-test"])) as client:
        answer = client.get("/")

    assert answer.status == 200
    assert "echo" not in answer.body.decode()


def test_its_data_is_the_list_of_models() -> None:
    with served(echo) as client:
        (model,) = client.get("/v2/models").json["models"]

    assert model == {
        "name": "echo",
        "version": "1",
        "state": "READY",
        "reason": "",
        "description": "",
        "max_batch_size": 1,
        "streams": False,
        "inputs": [
            {
                "name": "text",
                "datatype": "BYTES",
                "shape": [-1],
                "optional": False,
                "form": "list[str]",
            }
        ],
        "outputs": [{"name": "output", "datatype": "BYTES", "shape": [-1], "form": "list[str]"}],
        "examples": [{"text": "</script><b>bold</b>"}],
    }


def test_the_page_can_neither_be_framed_nor_opened_by_another() -> None:
    with served(echo) as client:
        headers = client.get("/").headers

    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "'unsafe-inline'" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
