from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wherry import Runtime
from wherry.core.instances import devices
from wherry.core.models.config import InstanceGroup as Instances
from wherry.core.values.datatypes import BYTES, FP32, Form
from wherry.core.values.errors import ConfigError, LoadFailed
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository import pbtxt
from wherry.triton.repository.validate import problems_of

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [2, -1] }
input { name: "s" data_type: TYPE_STRING dims: 1 optional: true }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
"""


def model(text: str, folder: str = "/models/m") -> RepositoryModel:
    return RepositoryModel(folder, "3", pbtxt.parse(text))


def test_the_signature_is_that_of_the_configuration() -> None:
    made = model(f"max_batch_size: 4 {TENSORS}").signature()

    x, s = made.inputs
    assert (x.name, x.datatype, x.shape, x.form) == ("x", FP32, (2, -1), Form.ARRAY)
    assert (s.name, s.datatype, s.form, s.optional) == ("s", BYTES, Form.BYTES, True)
    assert made.outputs[0].shape == (-1,)
    assert (made.streams, made.row_wise, made.returns) == (False, False, "named")
    assert model("model_transaction_policy { decoupled: true }").signature().streams


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {"max_batch_size": 0, "share_batches": False, "name": "m", "version": "3"}),
        (
            'instance_group { count: 2 rate_limiter { resources { name: "r" count: 4 } } }'
            ' instance_group { rate_limiter { resources [ { name: "r" count: 2 }, { name: "s" } ]'
            " priority: 3 } }",
            {"resources": {"r": 4, "s": 1}, "resource_priority": 3},
        ),
        ("instance_group { rate_limiter { priority: 2 } }", {"resources": None}),
        ("max_batch_size: 8", {"max_batch_size": 8, "share_batches": False}),
        (
            "max_batch_size: 8 dynamic_batching { }",
            {"share_batches": True, "max_queue_delay": None, "preferred_batch_sizes": ()},
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [8, 4, 4] }",
            {"max_queue_delay": 0.0, "preferred_batch_sizes": (4, 8)},
        ),
        (
            "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500 }",
            {"max_queue_delay": 0.0005},
        ),
        (
            "max_batch_size: 8 dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
            {"priority_levels": 3, "default_priority": 2},
        ),
        (
            "instance_group { count: 2 kind: KIND_CPU } instance_group { gpus: [0, 3] }",
            {"instances": (Instances(2, "cpu"), Instances(1, "cuda:0"), Instances(1, "cuda:3"))},
        ),
        (
            "instance_group { kind: KIND_GPU } instance_group { passive: true }",
            {"instances": (Instances(1, "cuda"),)},
        ),
        ("instance_group { kind: KIND_MODEL }", {"instances": (Instances(1, "cpu"),)}),
    ],
)
def test_the_settings_are_those_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, text: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    config = model(text).config()

    assert {name: getattr(config, name) for name in settings} == settings


def test_what_is_said_over_it_wins() -> None:
    assert model("max_batch_size: 8").config(max_batch_size=2).max_batch_size == 2


def test_a_worker_can_build_the_same() -> None:
    made = model(f"max_batch_size: 4 {TENSORS}")
    args, kwargs = pickle.loads(pickle.dumps(made.constructed_with))

    copy = RepositoryModel(*args, **kwargs)

    assert copy.triton == made.triton
    assert copy.version_folder == "/models/m/3"


def test_a_reshape_lies_between_the_client_and_the_model() -> None:
    made = model(
        """max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: [-1, 2, -1] reshape { shape: [-1, -1, 2] } }
        output { name: "y" data_type: TYPE_FP32 dims: 1 reshape { } }"""
    )
    x = np.zeros((3, 5, 2, 7), np.float32)

    assert np.shape(made.inward({"x": x})["x"]) == (3, 5, 7, 2)
    assert np.shape(made.outward({"y": np.zeros(3)})["y"]) == (3, 1)


def test_requests_do_not_share_batches_where_the_configuration_does_not_say_so() -> None:
    rows: list[int] = []

    class Counting(RepositoryModel):
        def execute(self, **columns: Any) -> dict[str, Any]:
            rows.append(len(columns["x"]))
            return {"y": columns["x"]}

    tensors = """input { name: "x" data_type: TYPE_FP32 dims: 1 }
                 output { name: "y" data_type: TYPE_FP32 dims: 1 }"""
    made = Counting("/m", "1", pbtxt.parse(f"name: 'm' max_batch_size: 4 {tensors}"))
    with Runtime(made) as runtime:
        list(runtime.map("m", [{"x": [float(i)]} for i in range(6)]))
        runtime.infer_batch("m", x=[[1.0], [2.0], [3.0]])
        runtime.infer_batch("m", x=[[float(i)] for i in range(6)])
    assert rows == [1] * 6 + [3] + [4, 2]


def test_labels_are_the_lines_of_their_file(tmp_path: Path) -> None:
    text = 'output { name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }'
    (tmp_path / "labels.txt").write_text("cat\ndog\r\n\nbird")

    assert model(text, str(tmp_path)).output_labels == {"y": ["cat", "dog", "", "bird"]}
    with pytest.raises(ConfigError, match=r"label_filename 'labels.txt': No such file"):
        _ = model(text, "/nowhere").output_labels


HEAD = """name: "m" max_batch_size: 4
input { name: "x" data_type: TYPE_INT16 dims: [2, -1] }
input { name: "s" data_type: TYPE_STRING dims: 2 optional: true }
output { name: "y" data_type: TYPE_INT16 dims: 1 }
"""


def batches(folder: Path, samples: str) -> list[tuple[dict[str, Any], int]]:
    model = RepositoryModel(str(folder), "1", pbtxt.parse(HEAD + samples))
    return [
        ({k: np.asarray(v).tolist() for k, v in columns.items()}, rows)
        for columns, rows in model.warmup_batches()
    ]


def sample(x: str = "zero_data: true", s: str = "", head: str = "batch_size: 1") -> str:
    inputs = f'inputs {{ key: "x" value {{ data_type: TYPE_INT16 dims: [2, 1] {x} }} }}'
    if s:
        inputs += f' inputs {{ key: "s" value {{ data_type: TYPE_STRING dims: 2 {s} }} }}'
    return f'model_warmup {{ name: "w" {head} {inputs} }}'


def test_a_sample_is_run_as_often_as_it_says_with_the_same_data_in_each_row(tmp_path: Path) -> None:
    found = batches(tmp_path, sample(s="zero_data: true", head="batch_size: 3 count: 2"))

    one = ({"x": [[[0], [0]]] * 3, "s": [[b"", b""]] * 3}, 3)
    assert found == [one, one]


def test_random_data_is_the_same_at_each_start(tmp_path: Path) -> None:
    ((first, _),) = batches(tmp_path, sample("random_data: true"))
    ((second, _),) = batches(tmp_path, sample("random_data: true"))

    assert first == second
    assert len(set(np.ravel(first["x"]).tolist())) == 2


def test_data_comes_from_the_files_of_the_warmup_folder(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x").write_bytes(np.array([1, -2], np.int16).tobytes())
    (tmp_path / "warmup" / "s").write_bytes(b"\1\0\0\0a\2\0\0\0bc")

    found = batches(tmp_path, sample('input_data_file: "x"', 'input_data_file: "s"'))

    assert found == [({"x": [[[1], [-2]]], "s": [[b"a", b"bc"]]}, 1)]


def test_of_a_file_that_holds_more_rows_the_first_is_taken(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "f").write_bytes(np.array([1, -2, 3, 4], np.int16).tobytes())

    ((columns, _),) = batches(tmp_path, sample('input_data_file: "f"'))

    assert columns["x"] == [[[1], [-2]]]


@pytest.mark.parametrize(
    "data", [b"\1\0\0\0a", b"\1\0\0\0a\2\0\0\0b", b"\xff\xff\xff\xffa", b"abc"]
)
def test_a_file_that_does_not_hold_the_data_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "f").write_bytes(data)
    (tmp_path / "warmup" / "short").write_bytes(data[:3])

    with pytest.raises(ConfigError, match="must hold 2 strings"):
        batches(tmp_path, sample(s='input_data_file: "f"'))
    with pytest.raises(ConfigError, match="has 3 bytes, its dims need 4"):
        batches(tmp_path, sample('input_data_file: "short"'))
    with pytest.raises(ConfigError, match="warmup/missing: No such file"):
        batches(tmp_path, sample('input_data_file: "missing"'))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (sample().replace("TYPE_INT16", "TYPE_INT8"), "input 'x' is TYPE_INT8, the model's is"),
        (sample().replace("[2, 1]", "[3, 1]"), r"has dims \[3, 1\], the model's are \[2, -1\]"),
        ("model_warmup { name: 'w' batch_size: 1 }", "input 'x' is missing"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=f"model_warmup 'w'.*{why}"):
        batches(tmp_path, text)


def test_every_instance_is_warm_before_it_is_ready() -> None:
    seen: list[list[int]] = []

    class Seeing(RepositoryModel):
        def execute(self, **columns: Any) -> dict[str, Any]:
            seen.append(list(columns["x"].shape))
            return {"y": columns["x"][:, :1, 0]}

    text = HEAD + sample(head="batch_size: 2 count: 3") + "instance_group { count: 2 }"
    with Runtime(Seeing("/m", "1", pbtxt.parse(text))):
        assert seen == [[2, 2, 1]] * 6


def test_a_model_that_does_not_survive_its_warmup_is_not_loaded() -> None:
    class Failing(RepositoryModel):
        def execute(self, **columns: Any) -> dict[str, Any]:
            raise ValueError("cold")

    with (
        pytest.raises(LoadFailed, match="cold"),
        Runtime(Failing("/m", "1", pbtxt.parse(HEAD + sample()))),
    ):
        pass


SEQUENCE = """name: "m" max_batch_size: 4
input { name: "x" data_type: TYPE_INT32 dims: 1 }
output { name: "y" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  control_input { name: "START" control {
    kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "READY" control {
    kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state { input_name: "s_in" output_name: "s_out" data_type: TYPE_INT8 dims: 1 }
}
"""


def of_sequence(**inputs: str) -> str:
    given = " ".join(
        f'inputs {{ key: "{name}" value {{ data_type: {kind} dims: 1 zero_data: true }} }}'
        for name, kind in inputs.items()
    )
    return f'{SEQUENCE} model_warmup {{ name: "w" batch_size: 2 {given} }}'


def test_a_sample_may_have_the_controls_and_states_of_a_sequence(tmp_path: Path) -> None:
    given = {"x": "TYPE_INT32", "START": "TYPE_INT32", "s_in": "TYPE_INT8"}
    config = pbtxt.parse(of_sequence(**given))
    assert [*problems_of(config)] == []
    ((columns, rows),) = RepositoryModel(str(tmp_path), "1", config).warmup_batches()
    assert rows == 2
    said = {name: np.ravel(np.asarray(column)).tolist() for name, column in columns.items()}
    assert said == {
        "x": [0] * 2,
        "START": [0] * 2,
        "READY": [1] * 2,
        "ID": [1] * 2,
        "s_in": [0] * 2,
    }


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": "TYPE_INT32", "START": "TYPE_FP32"}, "input 'START' is TYPE_FP32"),
        ({"x": "TYPE_INT32", "END": "TYPE_INT32"}, "the model has no input 'END'"),
        ({"START": "TYPE_INT32"}, "input 'x' is missing"),
    ],
    ids=str,
)
def test_what_a_sequence_does_not_have_is_refused(
    tmp_path: Path, inputs: dict[str, str], said: str
) -> None:
    def warm_up() -> None:
        config = pbtxt.parse(of_sequence(**inputs))
        list(RepositoryModel(str(tmp_path), "1", config).warmup_batches())

    with pytest.raises(ConfigError, match=said):
        warm_up()
