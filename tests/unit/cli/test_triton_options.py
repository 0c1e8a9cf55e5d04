from __future__ import annotations

import pytest

from wherry.cli.triton_options import SAME, WITHOUT_EFFECT, in_our_words
from wherry.server.options import OPTIONS


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["--model-store=/models"], ["--model-repository=/models"]),
        (["--model-repository", "/models"], ["--model-repository", "/models"]),
        (["--http-port", "9000"], ["--port", "9000"]),
        (["--http-address=0.0.0.0"], ["--host=0.0.0.0"]),
        (["--strict-readiness=false"], ["--no-strict-readiness"]),
        (["--strict-readiness", "0", "models"], ["--no-strict-readiness", "models"]),
        (["--strict-readiness", "models"], ["--strict-readiness", "models"]),
        (["--exit-on-error=TRUE"], ["--exit-on-error"]),
        (["--exit-on-error=perhaps"], ["--exit-on-error=perhaps"]),
        (["--log-verbose=1"], ["--log-level=debug"]),
        (["--log-verbose", "0"], []),
        (["--log-format=ISO8601"], []),
        (["--log-format", "json"], ["--log-format=json"]),
        (["--cache-config=local,size=1024"], ["--cache-size=1024"]),
        (["--cache-config", "redis,host=x"], ["--cache-config=redis,host=x"]),
        (["--trace-file=/tmp/Trace.json"], ["--trace-config=triton,file=/tmp/Trace.json"]),
        (["--trace-level", "TIMESTAMPS"], ["--trace-config=level=TIMESTAMPS"]),
        (["--trace-config", "triton,rate=5"], ["--trace-config", "triton,rate=5"]),
        (["--grpc-header-forward-pattern=x"], ["--http-header-forward-pattern=x"]),
        (["--nothing-we-know=1"], ["--nothing-we-know=1"]),
    ],
)
def test_their_option_in_our_words(theirs: list[str], ours: list[str]) -> None:
    assert in_our_words(["serve", *theirs]) == (["serve", *ours], [])


@pytest.mark.parametrize("value", [["=8002"], ["8002"]])
def test_an_option_without_effect_is_left_out_with_its_value_and_told(value: list[str]) -> None:
    words = ["--metrics-config" + value[0]] if value[0][0] == "=" else ["--metrics-config", *value]

    ours, ignored = in_our_words(["serve", *words, "--port=1", "models"])

    assert ours == ["serve", "--port=1", "models"]
    assert ignored == [("--metrics-config", "histograms are always there")]


def test_a_switch_without_effect_does_not_swallow_the_next_flag() -> None:
    assert in_our_words(["serve", "--allow-metrics", "--port", "1"])[0] == ["serve", "--port", "1"]


def test_other_commands_are_left_alone() -> None:
    words = ["call", "m", "--metrics-port=1"]

    assert in_our_words(words) == (words, [])


def test_no_flag_of_ours_is_given_away() -> None:
    ours = {option.flag for option in OPTIONS.values()}

    assert not ours & set(SAME)
    assert set(SAME.values()) <= ours
    for flag in ours & set(WITHOUT_EFFECT):  # ours since: it has an effect
        assert in_our_words(["serve", f"{flag}=1"])[1] == []
