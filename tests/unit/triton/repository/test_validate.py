from __future__ import annotations

import pytest

from wherry.triton.repository import pbtxt
from wherry.triton.repository.validate import problems_of, without_effect


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
            "input[0].allow_ragged_batch: it needs a model.py, and max_batch_size > 0",
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
            "model_repository_agents { agents { name: 'checksum' } }",
            "model_repository_agents.agents[0]: files are not checked here: do that before the"
            " server starts",
        ),
        (
            "batch_output { target_name: 'y' source_input: 'x' }",
            "batch_output: it is not here: a model.py gets each request by itself",
        ),
        (
            "backend: 'onnxruntime' max_batch_size: 2"
            " input { name: 'a' data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }",
            "input[0].allow_ragged_batch: it needs a model.py, and max_batch_size > 0",
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
    assert list(without_effect(pbtxt.parse("optimization { priority: PRIORITY_DEFAULT }"))) == []
