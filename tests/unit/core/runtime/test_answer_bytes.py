from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wherry.core.runtime.shared_cache import Unwritable, from_bytes, to_bytes
from wherry.core.values.request import InferResponse, ShapedRow


def test_every_column_comes_back_as_it_was() -> None:
    columns: dict[str, Any] = {
        "numbers": np.arange(6, dtype=np.float16).reshape(3, 2),
        "none": np.zeros((0, 4), np.int8),
        "texts": ["a", "é"],
        "bytes": [b"\xff", b""],
        "rows": [[b"a", b"b"], [b"c"]],
        "objects": [{"a": [1, None, True]}],
        "arrays": [np.ones(2), np.ones(3)],
    }
    found = from_bytes(to_bytes(InferResponse(columns, 3, {"score": 0.5, "n": 1})))

    assert (found.rows, found.parameters) == (3, {"score": 0.5, "n": 1})
    assert list(found.outputs) == list(columns)
    numbers: Any = found.outputs["numbers"]
    assert numbers.dtype == np.float16
    assert numbers.flags.writeable
    np.testing.assert_array_equal(numbers, columns["numbers"])
    assert np.shape(found.outputs["none"]) == (0, 4)
    for name in ("texts", "bytes", "rows", "objects"):
        assert found.outputs[name] == columns[name]
    assert [len(one) for one in found.outputs["arrays"]] == [2, 3]


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), [object()], np.zeros(1, "V2"), [1j], [ShapedRow([b"c"], (1, 1))]],
)
def test_what_is_no_data_is_not_written(value: Any) -> None:
    with pytest.raises(Unwritable):
        to_bytes(InferResponse({"y": value}))


GOOD = to_bytes(InferResponse({"y": np.zeros(2, np.int32), "t": ["x"]}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        GOOD[:-1],
        GOOD.replace(b"<i4", b"<i8"),
        GOOD.replace(b"<i4", b"|O8"),
        GOOD.replace(b"\x94\x02", b"\x94\x01"),
        b"\x94\x02\xff\x80\xc0",
        b"\x94\x02\x01\x90\xc0",
    ],
)
def test_what_was_not_written_here_is_not_read(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are msgpack's
        from_bytes(data)
