"""triton/repository/validate.py: Triton's repository agent `checksum`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.triton.backends.load import backend_for
from wherry.triton.repository import pbtxt
from wherry.triton.repository.schema import BadConfig
from wherry.triton.repository.triton_config import TritonConfig
from wherry.triton.repository.validate import mismatches, problems_of, without_effect


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "backend: 'onnxruntime' input { name: 'a' dims: 1 }",
            "input[0].data_type: it needs a data_type",
        ),
        ("output { data_type: TYPE_FP32 dims: 1 }", "output[0]: it needs a name"),
        (
            "platform: 'pytorch_libtorch' input { name: 'a' data_type: TYPE_FP32 reshape { } }",
            "input[0].dims: it needs dims, without the batch dimension: [ 1 ] or more (of one"
            " number: [ 1 ] and reshape { shape: [ ] })",
        ),
        (
            "input { name: 'a' data_type: TYPE_FP32 dims: [2, 3] reshape { shape: [5] } }",
            "input[0].reshape: [5] does not hold the elements of dims [2, 3]",
        ),
        (
            "input { name: 'a' data_type: TYPE_FP32 dims: 1 reshape { } }",
            "input[0].reshape: an empty shape needs max_batch_size > 0",
        ),
        (
            "input { name: 'a' data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }",
            "input[0].allow_ragged_batch: it needs max_batch_size > 0",
        ),
        (
            "output { name: 'a' data_type: TYPE_FP32 dims: 1 label_filename: '../secret' }",
            "output[0].label_filename: '../secret' must be a file of the model's folder",
        ),
        (
            "default_model_filename: '/etc/passwd'",
            "default_model_filename: '/etc/passwd' must be a file of the model's folder",
        ),
        (
            "version_policy { specific { versions: [0] } }",
            "version_policy.specific.versions[0]: 0 is not a version: they begin at 1",
        ),
        (
            "version_policy { specific { } }",
            "version_policy.specific.versions: it names no version",
        ),
        (
            "version_policy { latest { num_versions: 0 } }",
            "version_policy.latest.num_versions: must be at least 1",
        ),
        (
            "instance_group { gpus: [1, 1] }",
            "instance_group[0].gpus[1]: GPU 1 is there already",
        ),
        ("instance_group { count: -1 }", "instance_group[0].count: -1 must not be negative"),
        ("instance_group { gpus: -1 }", "instance_group[0].gpus: must not be negative"),
        (
            "sequence_batching { oldest { max_candidate_sequences: -1 } }",
            "sequence_batching.oldest.max_candidate_sequences: must not be negative",
        ),
        (
            "dynamic_batching { priority_levels: 3 }",
            "dynamic_batching.default_priority_level: must be set, from 1 to priority_levels (3)",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1"
            " priority_queue_policy { key: 3 value { } } }",
            "dynamic_batching.priority_queue_policy[3]: priority level 3 does not exist;"
            " priority_levels is 2",
        ),
        (
            "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 4 } }",
            "sequence_batching.oldest.preferred_batch_size[0]: 4 is more than max_batch_size (2)",
        ),
        (
            "sequence_batching { control_input { name: 'S' control {"
            " kind: CONTROL_SEQUENCE_START fp32_false_true: [0] } } }",
            "sequence_batching.control_input[0].control[0]: it needs two values, for false and"
            " true, in one of int32_false_true, fp32_false_true and bool_false_true",
        ),
        (
            "sequence_batching { control_input { name: 'C' control {"
            " kind: CONTROL_SEQUENCE_CORRID } } }",
            "sequence_batching.control_input[0].control[0]: the correlation id needs a data_type",
        ),
        (
            "sequence_batching { state { input_name: 'a' output_name: 'b' dims: 0 } }",
            "sequence_batching.state[0].dims[0]: 0 must be at least 1, or -1 for any size",
        ),
        (
            "max_batch_size: 2 model_warmup { batch_size: 3 }",
            "model_warmup[0].batch_size: 3 is more than 2",
        ),
        (
            "input { name: 'a' data_type: TYPE_FP32 dims: 1 } model_warmup { inputs {"
            " key: 'b' value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }",
            "model_warmup[0].inputs.b: the model has no input 'b'; its inputs are ['a']",
        ),
        (
            "model_warmup { inputs { key: 'b' value { data_type: TYPE_FP32 dims: 1 } } }",
            "model_warmup[0].inputs.b: it needs one of zero_data, random_data and input_data_file",
        ),
        (
            "model_transaction_policy { decoupled: true } response_cache { enable: true }",
            "response_cache: a decoupled model's responses cannot be cached",
        ),
        (
            "model_metrics { metric_control { histogram_options { buckets: 1 } } }",
            "model_metrics.metric_control[0].metric_identifier: it needs a family",
        ),
        (
            "model_metrics { metric_control { metric_identifier { family: 'f' } } }",
            "model_metrics.metric_control[0].histogram_options: it needs buckets",
        ),
        (
            "model_metrics { metric_control { histogram_options { buckets: [ 1, 1 ] } } }",
            "model_metrics.metric_control[0].histogram_options.buckets: each must be above the"
            " last",
        ),
        (
            "backend: 'python' ensemble_scheduling { }",
            "ensemble_scheduling: an ensemble has the platform 'ensemble' and no backend",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(text: str, told: str) -> None:
    config = pbtxt.parse(text, grammar_only=True)

    assert told in [str(problem) for problem in problems_of(config)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "backend: 'python' max_batch_size: 8 dynamic_batching { }",
        "max_batch_size: 0 dynamic_batching { preferred_batch_size: 8 }",  # completed later
        "input { name: 'a' data_type: TYPE_FP32 dims: [-1, 2] reshape { shape: [2, -1] } }",
        "input { name: 'a' data_type: TYPE_FP32 dims: 1 reshape { } } max_batch_size: 1",
        "instance_group { kind: KIND_GPU gpus: [0, 1] count: 2 }",
        "sequence_batching { control_input { name: 'S' control {"
        " kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } } }",
    ],
)
def test_what_makes_sense_is_no_problem(text: str) -> None:
    assert list(problems_of(pbtxt.parse(text, grammar_only=True))) == []


@pytest.mark.parametrize("backend", ["", "backend: 'python'"])
def test_gaps_are_problems_once_the_models_code_has_not_filled_them(backend: str) -> None:
    text = f"{backend} output {{ name: 'a' data_type: TYPE_FP32 }} output {{ name: 'b' dims: 1 }}"
    config = pbtxt.parse(text)
    assert [problem.path for problem in problems_of(config, completed=True)] == [
        ("output", 0, "dims"),
        ("output", 1, "data_type"),
    ]


def test_what_has_no_effect_is_told_with_the_reason() -> None:
    config = pbtxt.parse(
        """
        cc_model_filenames { key: "7.5" value: "a" }
        instance_group { host_policy: "p" } instance_group { host_policy: "q" }
        optimization { priority: PRIORITY_MAX cuda { graphs: true } graph { level: 1 } }
        """
    )

    assert [name for name, why in without_effect(config) if why] == [
        "cc_model_filenames",
        "instance_group.host_policy",
        "optimization.priority",
        "optimization.cuda",
    ]
    other = "model_metrics { metric_control { metric_identifier { family: 'f' }"
    other += " histogram_options { buckets: 1 } } }"
    ((name, why),) = without_effect(pbtxt.parse(other))
    assert name == "model_metrics of 'f'"
    assert "nv_inference_first_response_histogram_ms" in why
    assert list(without_effect(pbtxt.parse("optimization { priority: PRIORITY_DEFAULT }"))) == []


CONTENT = b"embedding" * 1000


def config(key: str, value: str, agent: str = "checksum") -> TritonConfig:
    agents = f'{{ name: "{agent}" parameters {{ key: "{key}" value: "{value}" }} }}'
    text = f'name: "m" backend: "python" model_repository_agents {{ agents [ {agents} ] }}'
    return pbtxt.parse(text, "config.pbtxt")


def told(folder: Path, given: TritonConfig) -> list[str]:
    return [str(problem) for problem in mismatches(str(folder), given)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "table").write_bytes(CONTENT)
    return tmp_path


@pytest.mark.parametrize("algorithm", ["MD5", "md5", "SHA256", "sha512"])
def test_a_file_with_the_right_checksum_is_fine(folder: Path, algorithm: str) -> None:
    value = hashlib.new(algorithm.lower(), CONTENT).hexdigest()
    assert told(folder, config(f"{algorithm}:1/table", value)) == []
    assert told(folder, config(f"{algorithm}:1/table", value.upper())) == []


def test_another_file_is_refused_in_tritons_words(folder: Path) -> None:
    found = hashlib.md5(CONTENT).hexdigest()
    assert told(folder, config("MD5:1/table", "00")) == [
        "model_repository_agents.agents[0].parameters.MD5:1/table: Mismatched MD5 hash for file"
        f" 1/table, expect: 00, got: {found}"
    ]


def test_a_file_that_is_not_there_is_said(folder: Path) -> None:
    (problem,) = told(folder, config("MD5:1/other", "00"))
    assert "failed to open file '1/other': No such file" in problem


def test_the_model_is_not_loaded(folder: Path) -> None:
    """Before any of its code runs."""
    (folder / "1" / "model.py").write_text("raise SystemExit('it has run')")
    with pytest.raises(ConfigError, match="Mismatched MD5 hash"):
        backend_for(str(folder), "1", config("MD5:1/model.py", "00"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("1/table", "the key must be ALGORITHM:FILE"),
        ("CRC32:1/table", "the algorithm one of md5, sha1"),
        ("MD5:", "it names no file"),
        ("MD5:../other/1/model.py", "must be a file of the model's folder"),
        ("MD5:/etc/hostname", "must be a file of the model's folder"),
    ],
)
def test_a_key_that_means_nothing_is_a_problem_of_the_file(key: str, text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        config(key, "00")


def test_other_agents_have_no_effect() -> None:
    noticed = dict(without_effect(config("key", "value", "decrypt")))
    assert noticed == {"model_repository_agents 'decrypt'": "the only agent is 'checksum'"}
