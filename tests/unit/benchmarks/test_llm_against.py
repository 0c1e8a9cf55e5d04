"""benchmarks.llm_against: who takes part, what is asked, what is told of it."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm_against import engines
from benchmarks.llm_against.__main__ import Comparison, row
from benchmarks.llm_against.load import Ask, Asks, Engine, EngineFailed, Run, ask, measure

WORDS = [(number, f" word{number}") for number in range(50)]


class Answers(BaseHTTPRequestHandler):
    """An engine that gives a piece for each token; "short" gives one too few, "lost" ends."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = asked["max_tokens"] - (asked["model"] == "short")
        pieces: list[dict[str, Any]] = [{"choices": [{"text": "a"}]}] * count
        pieces.append({"choices": [{"text": ""}], "usage": {"completion_tokens": count}})
        if asked["model"] == "lost":
            pieces = [{"error": {"message": "out of memory"}}]
        self.send_response(200)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_pieces_with_text_are_counted_and_the_last_one_without_is_not(url: str) -> None:
    engine = Engine("one", url, os.getpid(), "model")
    assert len(ask(engine, Ask(WORDS[:3], 5), 10)) == 5


@pytest.mark.parametrize(("model", "problem"), [("short", "4 tokens instead"), ("lost", "out of")])
def test_an_engine_that_does_something_else_has_failed(url: str, model: str, problem: str) -> None:
    with pytest.raises(EngineFailed, match=problem):
        measure(
            Engine("one", url, os.getpid(), model), Asks("equal", WORDS, 5, 0), 2,
            at_least=0, token_timeout=10,
        )  # fmt: skip


def test_each_caller_asks_at_least_once(url: str) -> None:
    engine = Engine("one", url, os.getpid(), "model")
    run = measure(engine, Asks("equal", WORDS, 5, 0), 3, at_least=0, token_timeout=10)
    assert run.tokens == 3 * 5
    assert len(run.first) == 3
    assert len(run.gaps) == 3 * 4


def test_those_who_take_no_token_ids_get_the_same_words_as_text() -> None:
    wanted = Ask(WORDS[:2], 5)
    ids, text = (
        wanted.body(Engine("one", "", 0, "m", takes_text=it))["prompt"] for it in (False, True)
    )
    assert (ids, text) == ([0, 1], " word0 word1")


def test_lengths_of_a_round_are_the_same_for_all_and_words_are_not() -> None:
    first, second = ([next(Asks("mixed", WORDS, 32, 1)) for _ in range(3)] for _ in range(2))
    assert [len(one.prompt) for one in first] == [len(one.prompt) for one in second]
    assert [one.prompt for one in first] != [one.prompt for one in second]


def test_what_is_not_installed_is_left_out_with_its_reason() -> None:
    with pytest.raises(engines.LeftOut, match="no_such_package is not there: ModuleNotFound"):
        engines.versions(sys.executable, "no_such_package")
    with pytest.raises(engines.LeftOut, match="vllm cannot be asked for"):
        engines.versions("/nowhere/python", "vllm")


def test_a_server_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    code = "print('MemoryError: too small'); print('bye')"
    with (
        pytest.raises(engines.LeftOut, match="MemoryError: too small"),
        engines.started([sys.executable, "-c", code], engines.free_port(), tmp_path / "log"),
    ):
        pass


def test_one_that_fails_is_named_and_asked_no_more() -> None:
    compared = Comparison({"vLLM": Engine("vLLM", "", 0, "m")})
    compared.drop("vLLM", "it fell over")
    assert (compared.running, compared.left_out) == ({}, {"vLLM": "it fell over"})


@pytest.mark.parametrize(
    ("theirs", "said"),
    [((10.0, 11.0, 9.0), "level"), ((5.0, 6.0, 4.0), "ahead"), ((20.0, 30.0, 25.0), "behind")],
)
def test_level_is_only_what_has_1_in_its_interval(theirs: tuple[float, ...], said: str) -> None:
    def runs(*rates: float) -> list[Run]:
        return [Run(int(rate), 1.0, 1.0, [0.1], [0.1]) for rate in rates]

    assert row("equal 4: other", runs(*theirs), runs(10, 10, 10))["wherry is"] == said
