"""A real browser: what can a page of another origin do, and does an allowed one work?"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypedDict

import pytest

import wherry
from tests.fakes import TIMEOUT

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
]

#: Tries what a page can do without being asked, and tells its own server what became of it.
ATTACK = """<body><script>
const target = "TARGET";
const tries = {
  load: () => fetch(target + "/v2/repository/models/x/load",
    {method: "POST", mode: "no-cors", body: "{}"}).then(a => a.type),
  infer: () => fetch(target + "/v2/models/shout/infer",
    {method: "POST", mode: "no-cors", body: JSON.stringify(INFER)}).then(a => a.type),
  preflight: () => fetch(target + "/v2/models/shout/infer",
    {method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"})
    .then(a => a.status),
  read: () => fetch(target + "/v2").then(a => a.status),
  image: () => new Promise((yes, no) => {
    const image = new Image(); image.onload = () => yes("loaded"); image.onerror = no;
    image.src = target + "/metrics";
  }),
  form: () => new Promise(yes => {
    document.body.insertAdjacentHTML("beforeend",
      `<iframe name="f"></iframe><form method="post" target="f" enctype="text/plain"
        action="${target}/v2/models/shout/infer"><input name='{"x": "' value='"}'></form>`);
    document.querySelector("iframe").onload = () => yes("sent");
    document.querySelector("form").submit();
  }),
  frame: () => new Promise(yes => {
    const frame = document.createElement("iframe"); frame.src = target + "/";
    frame.onload = () => yes("loaded"); document.body.append(frame);
  }),
};
(async () => {
  const told = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try { told[name] = await attempt(); } catch (error) { told[name] = "failed"; }
  }
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();
</script></body>"""

#: Calls as OpenAI's library for browsers does, and reads the stream.
ALLOWED = """<script>
(async () => {
  const told = {};
  try {
    const answer = await fetch("TARGET/v1/chat/completions", {
      method: "POST",
      headers: {"Authorization": "Bearer KEY", "Content-Type": "application/json",
        "X-Stainless-Lang": "js", "X-Request-Id": "mine"},
      body: JSON.stringify({model: "parrot", stream: true,
        messages: [{role: "user", content: "hello"}]}),
    });
    told.status = answer.status;
    told.id = answer.headers.get("x-request-id");
    const reader = answer.body.getReader();
    told.text = "";
    for (let part; !(part = await reader.read()).done;)
      told.text += new TextDecoder().decode(part.value);
    const refused = await fetch("TARGET/v1/models", {headers: {"Authorization": "Bearer no"}});
    told.refused = [refused.status, await refused.text()];
  } catch (error) { told.error = String(error); }
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();
</script>"""

INFER = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
KEY = "key-of-the-test-0123456789"


class Word(TypedDict):
    text: str


@wherry.model(max_batch_size=1)
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[Word]:
    """Says the last message again."""
    yield {"text": messages[-1]["content"]}


@contextmanager
def page(html: Callable[[str], str]) -> Iterator[tuple[str, Future[Any]]]:
    """A page on a port of its own, and what it tells."""
    told: Future[Any] = Future()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(html(self.path).encode() if self.path == "/" else b"")

        def do_POST(self) -> None:
            told.set_result(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def browser(url: str, profile: Path) -> Iterator[None]:
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def test_a_foreign_page_reaches_no_model(tmp_path: Path) -> None:
    ran: list[str] = []

    @wherry.model
    def shout(text: list[str]) -> list[str]:
        ran.extend(text)
        return text

    with wherry.Server(shout, port=0) as server:
        html = ATTACK.replace("TARGET", server.url).replace("INFER", json.dumps(INFER))
        with page(lambda _: html) as (url, told), browser(url, tmp_path):
            outcome = told.result(TIMEOUT)
    assert outcome.keys() == {"load", "infer", "preflight", "read", "image", "form", "frame"}
    assert outcome["preflight"] == outcome["read"] == outcome["image"] == "failed"
    assert ran == []


def test_an_allowed_page_streams_and_reads_errors(tmp_path: Path) -> None:
    html = ""
    with (
        page(lambda _: html) as (url, told),
        wherry.Server(parrot, port=0, api_keys=[KEY], cors_origins=[url]) as server,
    ):
        html = ALLOWED.replace("TARGET", server.url).replace("KEY", KEY)
        with browser(url, tmp_path):
            outcome = told.result(TIMEOUT)
    assert "error" not in outcome
    assert outcome["status"] == 200
    assert outcome["id"] == "mine"
    assert "hello" in outcome["text"]
    assert outcome["text"].rstrip().endswith("data: [DONE]")
    assert outcome["refused"][0] == 401
