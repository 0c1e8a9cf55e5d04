from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from wherry.server.cli import parser
from wherry.server.cli.settings import read_settings
from wherry.server.cli.triton_options import SAME, WITHOUT_EFFECT, in_our_words
from wherry.server.options import OPTIONS


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["--model-store=/models"], ["--model-repository=/models"]),
        (["--model-repository", "/models"], ["--model-repository", "/models"]),
        (["--http-port", "9000"], ["--port", "9000"]),
        (["--http-address=0.0.0.0"], ["--host=0.0.0.0"]),
        (["--grpc-address", "10.0.0.1"], ["--grpc-host", "10.0.0.1"]),
        (["--metrics-address=10.0.0.1"], ["--metrics-host=10.0.0.1"]),
        (["--strict-readiness=false"], ["--no-strict-readiness"]),
        (["--strict-readiness", "0", "models"], ["--no-strict-readiness", "models"]),
        (["--strict-readiness", "models"], ["--strict-readiness", "models"]),
        (["--exit-on-error=TRUE"], ["--exit-on-error"]),
        (["--exit-on-error=perhaps"], ["--exit-on-error=perhaps"]),
        (["--log-verbose=1"], ["--log-level=debug"]),
        (["--log-verbose", "0"], []),
        (["--log-format=ISO8601"], ["--log-format=iso8601"]),
        (["--log-format", "default"], []),
        (["--log-verbose=true"], ["--log-level=debug"]),
        (["--log-info=false"], ["--log-off=info"]),
        (["--log-info=0", "--log-warning", "OFF"], ["--log-off=info", "--log-off=warning"]),
        (["--log-error=false", "--log-verbose=1"], ["--log-off=error", "--log-level=debug"]),
        (["--log-info=true", "--log-error=1"], []),
        (["--model-control-mode=EXPLICIT"], ["--model-control-mode=explicit"]),
        (["--model-control-mode", "Poll"], ["--model-control-mode=poll"]),
        (["--rate-limit=EXECUTION_COUNT"], ["--rate-limit=execution_count"]),
        (["--strict-model-config=true"], ["--disable-auto-complete-config"]),
        (["--strict-model-config=false"], []),
        (["--disable-auto-complete-config"], ["--disable-auto-complete-config"]),
        (["--allow-grpc=true"], ["--grpc-port=8001"]),
        (["--allow-grpc=1", "--grpc-port=9"], ["--grpc-port=9"]),
        (["--allow-grpc=false", "--grpc-port=9"], []),
        (["--grpc-port", "9", "--allow-grpc", "false", "m"], ["m"]),
        (["--allow-metrics=false"], ["--disabled-api=metrics"]),
        (["--metrics-port", "8000", "--allow-metrics", "0"], ["--disabled-api=metrics"]),
        (["--allow-metrics=0", "--metrics-port=8000"], ["--disabled-api=metrics"]),
        (["--allow-metrics", "true"], []),
        (["--allow-http=true", "--allow-sagemaker=0"], []),
        (["--allow-http=false"], ["--no-http", "--grpc-port=8001"]),
        (["--allow-http", "0", "--grpc-port=9"], ["--no-http", "--grpc-port=9"]),
        (["--allow-http=0", "--allow-grpc=0"], ["--no-http"]),
        (["--model-namespacing=off"], []),
        (["--reuse-http-port=1", "--reuse-grpc-port=true"], ["--reuse-port"]),
        (["--reuse-http-port=0"], []),
        (["--grpc-infer-response-compression-level=high"], ["--grpc-compression=gzip"]),
        (["--grpc-infer-response-compression-level", "NONE"], ["--grpc-compression=none"]),
        (["--id=here"], ["--id=here"]),
        (["--backend-config=default-max-batch-size=8"], ["--default-max-batch-size=8"]),
        (
            ["--backend-config", "onnxruntime,default-max-batch-size=8"],
            ["--default-max-batch-size=8"],
        ),
        (["--log-format", "json"], ["--log-format=json"]),
        (["--cache-config=local,size=1024"], ["--cache-config=local,size=1024"]),
        (["--trace-file=/tmp/Trace.json"], ["--trace-config=triton,file=/tmp/Trace.json"]),
        (["--trace-level", "TIMESTAMPS"], ["--trace-config=level=TIMESTAMPS"]),
        (["--trace-config", "triton,rate=5"], ["--trace-config", "triton,rate=5"]),
        (["--nothing-we-know=1"], ["--nothing-we-know=1"]),
    ],
)
def test_their_option_in_our_words(theirs: list[str], ours: list[str]) -> None:
    assert in_our_words(["serve", *theirs]) == (["serve", *ours], [])


@pytest.mark.parametrize("value", [["=8002"], ["8002"]])
def test_an_option_without_effect_is_left_out_with_its_value_and_told(value: list[str]) -> None:
    name = "--metrics-interval-ms"
    words = [name + value[0]] if value[0][0] == "=" else [name, *value]

    ours, ignored = in_our_words(["serve", *words, "--port=1", "models"])

    assert ours == ["serve", "--port=1", "models"]
    assert ignored == [(name, "metrics are read when they are requested")]


def test_a_switch_without_effect_does_not_swallow_the_next_flag() -> None:
    assert in_our_words(["serve", "--allow-metrics", "--port", "1"])[0] == ["serve", "--port", "1"]


def test_other_commands_are_left_alone() -> None:
    words = ["call", "m", "--metrics-port=1"]

    assert in_our_words(words) == (words, [])


#: What `tritonserver --help` lists, with a value for each.
OF_TRITONSERVER = """
--id=x --exit-timeout-secs=30 --model-store=m --model-repository=m --exit-on-error=true
--disable-auto-complete-config --strict-readiness=true --model-control-mode=NONE
--repository-poll-secs=15 --load-model=* --model-config-name=x --model-load-thread-count=4
--model-load-retry-count=0 --model-namespacing=true --enable-peer-access=true --allow-http=true
--http-address=0.0.0.0 --http-port=8000 --reuse-http-port=true --http-header-forward-pattern=x
--http-thread-count=8 --http-max-input-size=67108864 --http-restricted-api=trace:k=v
--allow-grpc=true --grpc-address=0.0.0.0 --grpc-port=8001 --reuse-grpc-port=true
--grpc-header-forward-pattern=x --grpc-infer-thread-count=2 --grpc-infer-allocation-pool-size=8
--grpc-max-response-pool-size=8 --grpc-use-ssl=false --grpc-use-ssl-mutual=false
--grpc-server-cert=x --grpc-server-key=x --grpc-root-cert=x
--grpc-infer-response-compression-level=none --grpc-keepalive-time=1 --grpc-keepalive-timeout=1
--grpc-keepalive-permit-without-calls=0 --grpc-http2-max-pings-without-data=2
--grpc-http2-min-recv-ping-interval-without-data=1 --grpc-http2-max-ping-strikes=2
--grpc-max-connection-age=1 --grpc-max-connection-age-grace=1 --grpc-restricted-protocol=trace:k=v
--log-verbose=0 --log-info=true --log-warning=true --log-error=true --log-format=default
--log-file=x --allow-sagemaker=true --sagemaker-port=8080 --sagemaker-safe-port-range=1-2
--sagemaker-thread-count=8 --allow-vertex-ai=true --vertex-ai-port=8080 --vertex-ai-thread-count=8
--vertex-ai-default-model=m --allow-metrics=true --allow-gpu-metrics=true --allow-cpu-metrics=true
--metrics-address=0.0.0.0 --metrics-port=8002 --metrics-interval-ms=2000
--metrics-config=summary_latencies=true --trace-config=mode=triton --cache-config=local,size=1024
--cache-directory=x --rate-limit=off --rate-limit-resource=r:1:0
--pinned-memory-pool-byte-size=1 --cuda-memory-pool-byte-size=0:1 --cuda-virtual-address-size=0:1
--min-supported-compute-capability=7.0 --buffer-manager-thread-count=0
--host-policy=gpu_0,numa-node=0 --model-load-gpu-limit=0:0.5 --allow-client-shm=true
--backend-directory=x --backend-config=python,shm-default-byte-size=1 --repoagent-directory=x
--strict-model-config=false --response-cache-byte-size=1 --trace-file=x --trace-level=OFF
--trace-rate=1 --trace-count=-1 --trace-log-frequency=0
"""


@pytest.fixture(scope="module")
def command_line() -> argparse.ArgumentParser:
    return parser()


@pytest.mark.parametrize("option", OF_TRITONSERVER.split())
@pytest.mark.parametrize("apart", [False, True])
def test_every_option_of_tritonserver_is_taken(
    option: str, apart: bool, command_line: argparse.ArgumentParser, tmp_path: Path
) -> None:
    words = option.split("=", 1) if apart else [option]
    ours, ignored = in_our_words(["serve", *words])
    args, rest = command_line.parse_known_args(ours)

    assert not rest
    assert args.target == []
    read_settings(vars(args), {}, folder=tmp_path)
    assert all(why and name == words[0].partition("=")[0] for name, why in ignored)


def test_no_flag_of_ours_is_given_away() -> None:
    ours = {option.flag for option in OPTIONS.values()}

    assert not ours & set(SAME)
    assert set(SAME.values()) <= ours
    assert not ours & set(WITHOUT_EFFECT)
