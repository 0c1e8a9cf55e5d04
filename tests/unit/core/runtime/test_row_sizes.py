"""What is the size of a request, of which inputs, and for which models?"""

from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from wherry.core.values.reply import Reply
from wherry.core.values.request import Columns


def size_of(model: Any, columns: Columns, rows: int = 1) -> float:
    with wherry.Runtime(model) as runtime:
        return runtime.model(model.name).request(columns, rows, Reply(lambda _: None)).cost


@wherry.model(max_batch_size=4)
def text_only(text: list[str]) -> list[str]:
    return text


def test_the_size_of_a_text_is_its_length_and_of_several_rows_the_longest_ones() -> None:
    assert size_of(text_only, {"text": ["abc"]}) == 3
    assert size_of(text_only, {"text": ["abc", "abcdef", ""]}, 3) == 6
    assert size_of(text_only, {"text": [""]}) == 1


def test_texts_of_several_inputs_count_together_and_numbers_do_not() -> None:
    @wherry.model(max_batch_size=4)
    def pair(a: list[str], b: list[bytes], top: list[int]) -> list[str]:
        return a

    columns: Columns = {"a": ["abc", "a"], "b": [b"1", b"12345"], "top": np.array([99, 99])}
    assert size_of(pair, columns, 2) == 6


def test_arrays_of_different_shapes_in_a_list_count_by_their_elements() -> None:
    @wherry.model(max_batch_size=4)
    def ragged(ids: Annotated[list[np.ndarray], wherry.INT64[-1]]) -> list[int]:
        return [len(one) for one in ids]

    assert size_of(ragged, {"ids": [np.arange(5), np.arange(9)]}, 2) == 9


def test_models_whose_batches_cannot_be_grouped_have_no_sizes() -> None:
    @wherry.model(max_batch_size=4, max_queue_delay=0.001)
    def delayed(text: list[str]) -> list[str]:
        return text

    @wherry.model(max_batch_size=4, cost=1)
    def equal(text: list[str]) -> list[str]:
        return text

    @wherry.model
    def single(text: str) -> str:
        return text

    @wherry.model(max_batch_size=4)
    def numbers(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> list[int]:
        return [0] * len(x)

    for model in (delayed, equal, single):
        assert size_of(model, {"text": ["abcdef"]}) == 1.0
    assert size_of(numbers, {"x": np.zeros((1, 7), np.float32)}) == 1.0


def test_a_cost_that_is_no_function_is_refused_with_what_to_write() -> None:
    @wherry.model(max_batch_size=4, cost=3)
    def three(text: list[str]) -> list[str]:
        return text

    with pytest.raises(wherry.ConfigError, match="'three': cost 3 is neither a function"):
        wherry.Runtime(three).start()
