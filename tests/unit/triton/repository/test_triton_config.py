"""Which fields can a config.pbtxt have, and what are their defaults?"""

import pytest

from tools.triton_config import DEFAULTS, FILE, generated
from wherry.server.grpc.proto import load
from wherry.triton.repository.schema import fields_of
from wherry.triton.repository.triton_config import TritonConfig, TritonDynamicBatching, TritonInput


def test_the_file_is_what_the_generator_writes() -> None:
    assert generated() == FILE.read_text(encoding="utf-8"), "make proto"


def test_every_default_is_of_a_field_of_the_proto() -> None:
    messages = load("model_config.proto").messages
    for path in DEFAULTS:
        message, _, field = path.rpartition(".")
        assert field in [one.name for one in messages[message].fields]


@pytest.mark.parametrize(
    ("name", "number", "problem"),
    [
        ("max_queue_delay_microseconds", 2**64 - 1, None),
        ("max_queue_delay_microseconds", 2**64, f"{2**64} is out of range"),
        ("max_queue_delay_microseconds", -1, "-1 must not be negative"),
        ("preferred_batch_size", -(2**31), None),
        ("preferred_batch_size", 2**31, f"{2**31} is out of range"),
    ],
)
def test_a_number_has_the_range_of_its_type_in_the_proto(
    name: str, number: int, problem: str | None
) -> None:
    assert fields_of(TritonDynamicBatching)[name].out_of_range(number) == problem


def test_a_message_is_none_until_it_is_set_and_a_list_or_map_is_empty() -> None:
    config = TritonConfig()
    assert (config.dynamic_batching, config.input, config.parameters) == (None, [], {})
    assert TritonInput().data_type == "TYPE_INVALID"
