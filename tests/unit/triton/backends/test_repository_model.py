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
from wherry.core.values.errors import ConfigError
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository import pbtxt

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
