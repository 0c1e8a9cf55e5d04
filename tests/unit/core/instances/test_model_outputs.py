"""Is whatever a model returns an answer, or an error that names it? (model_outputs)"""

import datetime
import json
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from wherry.core.instances.media_rows import MediaRows
from wherry.core.instances.model_outputs import ModelOutputs
from wherry.core.models.config import ModelConfig
from wherry.core.models.signature import Signature, read_signature
from wherry.core.values.datatypes import BYTES, DATATYPES, Form, TensorSpec
from wherry.core.values.errors import BadModelOutput, ConfigError, WherryError
from wherry.core.values.request import Column
from wherry.server.v2.output_codec import OutputCodec

Strings = Annotated[list[np.ndarray], wherry.BYTES[-1]]

ODD: dict[str, Any] = {
    **{f"empty {kind}": np.array([], kind) for kind in "?bBhHiIqQefdgFDGSUOMmV"},
    "no rows": np.zeros((0, 2)),
    "empty rows": np.zeros((2, 0)),
    "objects": np.array([None, None], object),
    "both kinds": ["a", b"b"],
    "text": "a",
    "texts": ["a", "b"],
    "numpy's text": np.array(["a", "b"]),
    "numpy's bytes": np.array([b"a", b"b"]),
    "text of two dimensions": np.array([["a", "b"]]),
    "ragged": [["a"], ["b", "c"]],
    "ragged numbers": [[1], [1, 2]],
    "nan": [float("nan"), 1.0],
    "large": [10**400, 1],
    "dates": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * 2,
    "numpy's dates": np.array(["2020-01-01", "2020-01-02"], "M8[D]"),
    "structured": np.zeros(2, [("a", "i4")]),
    "masked": np.ma.masked_array([1.0, 2.0], [False, True]),
    "complex": np.array([1j, 2]),
    "half": np.array([1, 2], "e"),
    "big-endian": np.array([1, 2], ">f4"),
    "strided": np.arange(4.0)[::2],
    "no dimensions": np.array(1.0),
    "an object": object(),
    "nothing": None,
    "a generator": (x for x in (1, 2)),
    "a set": {1, 2},
    "surrogates": ["\ud800", "b"],
}


def outputs_of(spec: TensorSpec, max_batch_size: int) -> ModelOutputs:
    signature = Signature((), (spec,), False, False, False, "single")
    return ModelOutputs(
        signature, ModelConfig(name="m", max_batch_size=max_batch_size), MediaRows(signature, "m")
    )


def specs() -> list[TensorSpec]:
    strings = [
        TensorSpec("y", BYTES, shape, form)
        for form in (Form.TEXT, Form.BYTES)
        for shape in ((), (-1,), (2,), (-1, -1))
    ]
    numbers = [
        TensorSpec("y", datatype, shape, form)
        for datatype in DATATYPES.values()
        for shape, form in (
            ((), Form.SCALARS),
            ((-1,), Form.ARRAY),
            ((2,), Form.ARRAYS),
            ((-1, -1), Form.ARRAYS),
        )
        if datatype is not BYTES
    ]
    return [*strings, *numbers, TensorSpec("y", BYTES, (), Form.JSON)]


@pytest.mark.parametrize("max_batch_size", [0, 2])
@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore::Warning")  # numpy's, of the model's own values
def test_no_value_of_any_declared_kind_is_an_error_of_ours(name: str, max_batch_size: int) -> None:
    value = ODD[name]
    returned = [value] if not max_batch_size else [[value, value], value]
    for spec in specs():
        codec = OutputCodec(spec, "m", batched=bool(max_batch_size))
        for result in returned:
            try:
                one = outputs_of(spec, max_batch_size)
                column = one.of(result if max_batch_size else value, max_batch_size or 1)["y"]
            except BadModelOutput as error:
                assert str(error).startswith("model 'm': output 'y'")  # noqa: PT017 - most are answers
                continue
            encode_all(codec, column)


def encode_all(codec: OutputCodec, column: Column) -> None:
    for encode in (codec.json, codec.binary, codec.values, codec.elsewhere, codec.small_json):
        try:
            encode(column)
        except WherryError as error:
            assert "'m'" in str(error)  # noqa: PT017 - what is not raised is right as well


def strings_of(*rows: Any) -> Column:
    def model(x: list[str]) -> Strings:
        raise NotImplementedError

    signature = read_signature(model, "m")
    outputs = ModelOutputs(signature, ModelConfig(name="m"), MediaRows(signature, "m"))
    return outputs.of([*rows], len(rows))["output"]


@pytest.mark.parametrize("kind", ["f", "O", "S", "U"])
def test_an_empty_array_is_an_empty_tensor_of_strings(kind: str) -> None:
    codec = OutputCodec(TensorSpec("y", BYTES, (-1,), Form.BYTES), "m")
    column = strings_of(np.array([], kind))
    assert json.loads(b"".join(codec.json(column))) == {
        "name": "y",
        "datatype": "BYTES",
        "shape": [1, 0],
        "data": [],
    }
    assert json.loads(codec.binary(column)[0])["shape"] == [1, 0]


def test_an_array_of_strings_of_either_kind_is_a_tensor_of_strings() -> None:
    rows = np.array(["a", "b"]), np.array([b"a", b"b"]), np.array(["a", b"b"], object), ["a", b"b"]
    assert strings_of(*rows) == [[b"a", b"b"]] * 4


def test_an_array_of_something_else_names_what_it_is() -> None:
    with pytest.raises(BadModelOutput, match=r"'output' must hold bytes lists, not NoneType"):
        strings_of(np.array([None]))
    with pytest.raises(BadModelOutput, match=r"rows of shape \[1, 1\], declared is \[-1\]"):
        strings_of(np.array([["a"]]))


def test_an_input_is_no_array_of_strings() -> None:
    def model(x: Strings) -> list[str]:
        raise NotImplementedError

    with pytest.raises(ConfigError, match="parameter 'x': strings are not an array here"):
        read_signature(model, "m")
