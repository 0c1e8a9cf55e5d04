"""How is a model to be run, and what is refused, with which words?"""

import math
from typing import Any

import pytest

from wherry.core.models.config import FIELDS, InstanceGroup, ModelConfig, model_config
from wherry.core.values.errors import ConfigError


def test_the_defaults_are_one_instance_anywhere_that_takes_one_row() -> None:
    config = model_config("m", {})
    assert config == ModelConfig(name="m")
    assert config.max_batch_size == 1
    assert config.instances == (InstanceGroup(1, "auto"),)
    assert config.version == "1"


@pytest.mark.parametrize("name", ["m", "bert-base_v1.5", "0", "A" * 200])
def test_a_name_may_hold_what_a_path_segment_may(name: str) -> None:
    assert ModelConfig(name=name).name == name


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "a b", "é", "a\n"])
def test_a_name_that_is_no_path_segment_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="use letters, digits"):
        ModelConfig(name=name)


@pytest.mark.parametrize(
    ("settings", "field", "problem"),
    [
        ({"version": "0"}, "version", "whole number from 1 up"),
        ({"version": "v2"}, "version", "whole number from 1 up"),
        ({"version": "01"}, "version", "whole number from 1 up"),
        ({"version": "²"}, "version", "whole number from 1 up"),
        ({"version": ""}, "version", "whole number from 1 up"),
        ({"max_batch_size": -1}, "max_batch_size", "must not be negative"),
        ({"max_queue_delay": -0.1}, "max_queue_delay", "must not be negative"),
        ({"max_queue_delay": math.nan}, "max_queue_delay", "must not be negative"),
        ({"crash_budget": -1}, "crash_budget", "must not be negative"),
        ({"request_timeout": 0.0}, "request_timeout", "more than 0 seconds"),
        ({"request_timeout": -1.0}, "request_timeout", "more than 0 seconds"),
        ({"request_timeout": math.nan}, "request_timeout", "more than 0 seconds"),
        ({"execution_timeout": 0.0}, "execution_timeout", "more than 0 seconds"),
        ({"stall_timeout": 0.0}, "stall_timeout", "more than 0 seconds"),
        ({"unload_timeout": 0.0}, "unload_timeout", "more than 0 seconds"),
        ({"crash_window": 0.0}, "crash_window", "more than 0 seconds"),
        ({"max_queue_size": 0}, "max_queue_size", "at least 1, or None"),
        ({"max_unread_responses": 0}, "max_unread_responses", "at least 1"),
        ({"isolation": "container"}, "isolation", "'thread', 'process' or 'shared'"),
        ({"instances": []}, "instances", "at least one instance"),
        ({"default_priority": 0}, "default_priority", "between 1 and priority_levels"),
        ({"default_priority": 11}, "default_priority", "between 1 and priority_levels"),
        ({"priority_levels": 4}, "default_priority", "between 1 and priority_levels"),
        (
            {"max_batch_size": 4, "preferred_batch_sizes": [2, 8]},
            "preferred_batch_sizes",
            "between 1 and max_batch_size (4)",
        ),
        ({"preferred_batch_sizes": [0]}, "preferred_batch_sizes", "between 1"),
        ({"warmup": {"text": "a"}}, "warmup", "a list of rows"),
        ({"warmup": 5}, "warmup", "a list of rows"),
        ({"examples": ["a"]}, "examples", "a list of rows"),
    ],
    ids=str,
)
def test_a_value_out_of_range_names_the_model_the_field_and_the_range(
    settings: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        model_config("m", settings)
    message = str(raised.value)
    assert message.startswith(f"model 'm': {field} ")
    assert problem in message


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_size": "8"},
        {"max_batch_size": True},
        {"max_batch_size": 8.5},
        {"max_queue_delay": "fast"},
        {"isolate_errors": "yes"},
        {"instances": "two"},
        {"instances": 2.0},
        {"instances": True},
        {"instances": None},
        {"instances": [{"count": 1, "gpus": [0]}]},
        {"instances": [3]},
        {"device": 1},
        {"preferred_batch_sizes": 4},
        {"version": 1.5},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_a_configuration_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        model_config("m", settings)
    assert "m" in str(raised.value)


def test_a_value_of_the_wrong_type_is_named_as_every_other_problem() -> None:
    with pytest.raises(ConfigError) as raised:
        model_config("m", {"max_batch_size": "8"})
    assert str(raised.value) == "model 'm': max_batch_size: expected int, got str"


@pytest.mark.parametrize("key", ["max_batchsize", "max_batch_size_", "Instances", "devices"])
def test_an_unknown_setting_is_answered_with_the_one_that_was_meant(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; did you mean '"):
        model_config("m", {key: 1})


def test_an_unknown_setting_like_no_other_is_only_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        model_config("m", {"colour": "red"})
    assert str(raised.value) == "model 'm': unknown setting 'colour'"


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({"instances": 3}, [(3, "auto")]),
        ({"instances": 3, "device": "cpu"}, [(3, "cpu")]),
        ({"device": "cuda:1"}, [(1, "cuda:1")]),
        ({"instances": {"count": 2}}, [(2, "auto")]),
        ({"instances": {"device": "cpu"}, "device": "cuda"}, [(1, "cpu")]),
        ({"instances": InstanceGroup(2, "cpu")}, [(2, "cpu")]),
        ({"instances": [{"device": "cuda:0"}, InstanceGroup(2)]}, [(1, "cuda:0"), (2, "auto")]),
        ({"instances": (InstanceGroup(2),), "device": "cpu"}, [(2, "cpu")]),
    ],
    ids=str,
)
def test_instances_may_be_a_number_a_group_or_a_list_of_groups(
    settings: dict[str, Any], groups: list[tuple[int, str]]
) -> None:
    config = model_config("m", settings)
    assert [(g.count, g.device) for g in config.instances] == groups


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_a_device_that_does_not_exist_anywhere_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="expected 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        model_config("m", {"device": device})


@pytest.mark.parametrize("count", [0, 1001, 10**9])
def test_an_instance_group_holds_one_instance_to_a_thousand(count: int) -> None:
    with pytest.raises(ConfigError, match=f"count must be 1 to 1000, not {count}"):
        model_config("m", {"instances": count})


def test_a_version_may_be_a_number() -> None:
    assert model_config("m", {"version": 7}).version == "7"


def test_samples_keep_the_users_own_values() -> None:
    value = object()
    config = model_config("m", {"examples": [{"x": value}], "warmup": iter([{"x": 1}])})
    assert config.examples[0]["x"] is value
    assert config.warmup == ({"x": 1},)


def test_the_settings_that_were_given_are_not_changed() -> None:
    settings = {"instances": 2, "device": "cpu", "examples": [{"x": 1}]}
    model_config("m", settings)
    assert settings == {"instances": 2, "device": "cpu", "examples": [{"x": 1}]}


def test_every_setting_can_be_given_by_name() -> None:
    config = ModelConfig(name="m", max_batch_size=4)
    settings = {name: getattr(config, name) for name in FIELDS if name != "name"}
    assert model_config("m", settings) == config
