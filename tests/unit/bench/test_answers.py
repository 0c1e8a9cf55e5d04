"""What the body of an answer tells."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs import assert_linear
from wherry.bench.answers import (
    OpenAiEvents,
    V2Events,
    WholeAnswer,
)

CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
    b': a comment\n\nevent: x\ndata: {"choices":[{"text":"b"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(CHAT)), max_size=8))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    reader = OpenAiEvents()
    edges = [0, *sorted(cuts), len(CHAT)]
    for now, (start, stop) in enumerate(itertools.pairwise(edges)):
        reader.feed(CHAT[start:stop], float(now))
    assert reader.ended() == ""
    assert (reader.tokens_in, reader.tokens_out, len(reader.gaps)) == (4, 9, 1)


def test_a_role_is_no_token() -> None:
    reader = OpenAiEvents()
    reader.feed(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', 1.0)
    assert len(reader.gaps) == reader.tokens_out == 0
    reader.feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', 2.0)
    reader.feed(b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n', 2.5)
    assert (reader.first, reader.gaps, reader.tokens_out) == (2.0, [0.5], 2)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'data: {"choices":[{"text":"x"}]}\n\n', "without finish_reason or [DONE]"),
        (b"data: [DONE]\n\n", "without any piece"),
        (b'data: {"error":{"message":"full"}}\n\ndata: [DONE]\n\n', "full"),
        (b"data: oops\n\n", "not an OpenAI event"),
        (b'data: {"usage":{"completion_tokens":-1}}\n\n', "not an OpenAI event"),
        (b'data: {"usage":{"prompt_tokens":4294967296}}\n\n', "not an OpenAI event"),
        (b"", "without any piece"),
    ],
)
def test_a_stream_that_is_not_whole_is_an_error(data: bytes, problem: str) -> None:
    reader = OpenAiEvents()
    reader.feed(data, 1.0)
    assert problem in reader.ended()


def test_a_stream_is_whole_with_its_finish_reason() -> None:
    reader = OpenAiEvents()
    reader.feed(b'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n', 1.0)
    reader.feed(b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n', 2.0)
    assert reader.ended() == ""
    assert reader.tokens_out == 1


def test_a_last_event_may_lack_its_empty_line() -> None:
    reader = V2Events()
    reader.feed(b'data: {"output":"a"}\n\ndata: {"output":"b"}\n', 1.0)
    assert reader.ended() == ""
    assert reader.tokens_out == 2


def test_a_v2_event_may_speak_of_an_error_without_being_one() -> None:
    reader = V2Events()
    reader.feed(b'data: {"output":"the \\"error\\" of his ways"}\n\n', 1.0)
    assert reader.ended() == ""


def test_a_whole_answer_has_its_usage() -> None:
    reader = WholeAnswer()
    reader.feed(b'{"choices":[{"message":{"content":"x"}}],"usa', 1.0)
    reader.feed(b'ge":{"prompt_tokens":3,"completion_tokens":2}}', 2.0)
    assert reader.ended() == ""
    assert (reader.tokens_in, reader.tokens_out) == (3, 2)
    bad = WholeAnswer()
    bad.feed(b"<html>", 1.0)
    assert "not an OpenAI answer" in bad.ended()


@pytest.mark.parametrize("unit", [b"a", b"\n", b"\r", b"\r\n", b"data:\n", b"data: {}\n\n"])
@pytest.mark.parametrize("at_once", [1, 100])
def test_reading_events_costs_what_their_bytes_are_worth(unit: bytes, at_once: int) -> None:
    def read(data: bytes) -> None:
        reader = V2Events()
        for at in range(0, len(data), at_once):
            reader.feed(data[at : at + at_once], 0.0)
        reader.ended()

    assert_linear(read, lambda size: unit * (size // len(unit) + 1), largest=2**18)
