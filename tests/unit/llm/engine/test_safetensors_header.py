"""llm/engine/safetensors_header.py: tensors by their header alone, and headers of strangers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.values.errors import ConfigError
from wherry.llm.engine.safetensors_header import MOST_HEADER_BYTES, stored_tensors


def written(folder: Path, header: Any, data: int = 0) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return file


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_have_their_types_and_sizes(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor(0, 24, [2, 3]),
        "b": tensor(24, 26, [], "BF16"),
        "c": tensor(26, 26, [0, 7], "I64"),
        "d": tensor(26, 28, [4], "F4"),
    }
    found = stored_tensors(written(tmp_path, header, 28))
    assert {name: (t.dtype, t.elements, t.nbytes) for name, t in found.items()} == {
        "a": ("F32", 6, 24), "b": ("BF16", 1, 2), "c": ("I64", 0, 0), "d": ("F4", 4, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"a": tensor(0, 24, [2, 3], "F33")}, "unknown type 'F33'"),
        ({"a": tensor(0, 24, [2, 4])}, "24 bytes, and a shape of 8 F32"),
        ({"a": tensor(0, 24, [-2, -3])}, "does not begin where"),
        ({"a": tensor(24, 0, [2, 3])}, "does not begin where"),
        ({"a": tensor(-24, 0, [2, 3])}, "does not begin where"),
        ({"a": tensor(0, 24, [6]), "b": tensor(20, 44, [6])}, "'b' does not begin where"),
        ({"a": tensor(0, 400, [100])}, "ends at byte 400 of 28: the file is cut off"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "cannot be read"),
        ({"a": tensor(0, 4, [1]) | {"shape": ["1"]}}, "cannot be read"),
        ({"a": tensor(0, 24, [6])}, "end at byte 24 of 28: the file is not what its header says"),
        ({"a": tensor(0, 8, [2]), "b": tensor(12, 28, [4])}, "'b' does not begin where"),
        (b"[" * 200_000, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "cannot be read"),
        ({"a": tensor(0, 1 << 63, [1 << 61])}, "ends at byte|cannot be read"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        stored_tensors(written(tmp_path, header, 28))


def test_an_implausible_length_is_not_allocated(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for length in (MOST_HEADER_BYTES + 1, 2**64 - 1):
        file.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(ConfigError, match=f"a header of {length} bytes"):
            stored_tensors(file)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "model.safetensors"
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        stored_tensors(file)
