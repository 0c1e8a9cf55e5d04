"""What a checkpoint's author recommends holds where a request says nothing else."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.llm.engine.llm import _defaults
from wherry.llm.engine.sampling import Parameters, defaults_of

QWEN = {
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.05,
    "transformers_version": "4.37.0",
}


def test_the_authors_parameters_hold_where_a_request_sets_none() -> None:
    defaults = defaults_of(QWEN)
    found = Parameters(top_k=0, seed=3).resolved(defaults)
    assert (found.temperature, found.top_p, found.repetition_penalty) == (0.7, 0.8, 1.05)
    assert (found.top_k, found.seed, found.min_p, found.max_tokens) == (0, 3, 0.0, None)
    assert Parameters().resolved({}).temperature == 1.0
    assert defaults_of({"max_new_tokens": 9}) == {"max_tokens": 9}


@pytest.mark.parametrize(
    "content",
    [
        {"temperature": "warm"},
        {"top_k": 2.5},
        {"top_p": True},
        {"top_p": 0},
        {"temperature": float("nan")},
        {"max_new_tokens": 0},
    ],
)
def test_a_parameter_that_is_none_is_refused_by_its_name(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        defaults_of(content)


def test_a_default_gives_way_to_what_a_request_sets() -> None:
    defaults = defaults_of({"max_new_tokens": 20})
    assert Parameters(min_tokens=30).resolved(defaults).checked("m", 9).max_tokens == 30
    assert Parameters(min_tokens=3).resolved(defaults).max_tokens == 20
    with pytest.raises(InvalidRequest, match="min_tokens must be at most max_tokens"):
        Parameters(min_tokens=30, max_tokens=9).resolved(defaults).checked("m", 9)


def test_the_authors_parameters_are_logged_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = tmp_path / "generation_config.json"
    with caplog.at_level(logging.INFO, "wherry"):
        assert _defaults("m", str(tmp_path)) == {}
        assert not caplog.records
        config.write_text(json.dumps(QWEN))
        _defaults("m", str(tmp_path))
    (told,) = (vars(record) for record in caplog.records)
    assert (told["model"], told["temperature"], told["top_k"]) == ("m", 0.7, 20)
    assert "eos_token_id" not in told
