"""frontends/v2/triton_words.py: an error as Triton tells it."""

from __future__ import annotations

import pytest

from wherry.frontends.v2.triton_words import GRPC_RULES, RULES, ToldError, in_tritons_words

UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("ours", "status", "theirs"),
    [
        (
            f"Unable to parse 'shape': {UNSIGNED} (inputs[3].shape[1]: expected int >= 0)",
            500,
            f"Unable to parse 'shape': {UNSIGNED}",
        ),
        (
            "parameter 'timeout' must be a whole number",
            500,
            f"Unable to parse 'timeout': {UNSIGNED}",
        ),
        (
            "expected 2 inputs but got 1 inputs for model 'm'",
            400,
            "[request id: mine] expected 2 inputs but got 1 inputs for model 'm'",
        ),
        (
            "input 'A' has 70 rows, and a request to model 'm' at most 64 (1 batches of its"
            " max_batch_size); send several",
            400,
            "[request id: mine] inference request batch-size must be <= 64 for 'm'",
        ),
        (
            "inference input 'A' data-type is 'fp32', but model 'm' expects 'FP32'",
            400,
            "invalid datatype for input A",
        ),
        (
            "inference input 'A' data-type is 'INT8', but model 'm' expects 'FP32'",
            400,
            "[request id: mine] inference input 'A' data-type is 'INT8', but model 'm' expects"
            " 'FP32'",
        ),
        (
            "in ensemble 'a', in ensemble 'b', input 'A' already exists in request",
            400,
            "in ensemble 'a', in ensemble 'b', [request id: mine] input 'A' already exists in"
            " request",
        ),
        (
            "failed to load 'a'b', failed to poll from model repository: Invalid stub name:"
            ' contains invalid characters: model name "a\'b": use letters',
            400,
            "load failed for model 'a'b': version 1 is at UNAVAILABLE state: Internal: Invalid stub"
            " name: contains invalid characters;",
        ),
        ("what no rule knows", 400, "what no rule knows"),
    ],
)
def test_details_go_and_the_status_is_tritons(ours: str, status: int, theirs: str) -> None:
    told = in_tritons_words(ToldError(400, "INVALID_ARGUMENT", ours), "mine")
    assert (told.status, told.text) == (status, theirs)


def test_without_an_id_it_is_unknown() -> None:
    told = in_tritons_words(ToldError(400, "", "input 'A' already exists in request"))
    assert told.text == "[request id: <id_unknown>] input 'A' already exists in request"


def test_grpc_has_words_of_its_own() -> None:
    ours = ToldError(0, "INVALID_ARGUMENT", "parameter 'timeout' must be a whole number")
    told = in_tritons_words(ours, over_grpc=True)
    assert told.text == "invalid value type for 'timeout' parameter, expected int64_param."
    assert told.code == "INVALID_ARGUMENT"


def test_long_texts_cost_no_more_than_their_size() -> None:
    """No pattern may go back and forth over a text that a client chose."""
    for rule in (*RULES, *GRPC_RULES):
        for text in ("input '" * 20_000, "(" * 100_000, "Unable to parse 'a': Shape (" * 9_000):
            rule.ours.fullmatch(text)
