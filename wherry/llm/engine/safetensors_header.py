"""Which tensors does a safetensors file say that it has? Reads its header only.

Format: 8 bytes with the header's length, a JSON object of tensors with their type, shape and place,
and the tensors' bytes one after another (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wherry.core.api import ConfigError
from wherry.llm.engine.library_errors import brief

#: A file of 10,000 tensors has a header of 1 MB.
MOST_HEADER_BYTES: Final = 16 << 20
#: Bits of an element by the format's names of types.
BITS: Final[Mapping[str, int]] = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor's type, shape, and first and last byte behind the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


def header_length(file: Path) -> int:
    """The header's length in bytes. ConfigError if it is implausible: libraries allocate it."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if length > MOST_HEADER_BYTES:
        raise ConfigError(
            f"{file.parent.name}: {file.name}: a header of {length} bytes; at most"
            f" {MOST_HEADER_BYTES} are read"
        )
    return length


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors by name. ConfigError says what in the header is wrong, or whether the file is
    shorter than the header says."""
    length = header_length(file)
    where = f"{file.parent.name}: {file.name}"
    with file.open("rb") as opened:
        opened.seek(8)
        text = opened.read(length)
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        members.pop("__metadata__", None)
        found = {name: msgspec.json.decode(raw, type=StoredTensor) for name, raw in members.items()}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where}: its header cannot be read: {brief(error)}; download it again"
        ) from None
    _check(where, found, file.stat().st_size - 8 - length)
    return found


def _check(where: str, tensors: Mapping[str, StoredTensor], size: int) -> None:
    """Raise ConfigError unless the tensors lie within `size` bytes, one after another, each as
    long as its shape says."""
    end = 0
    by_place = sorted(tensors.items(), key=lambda item: item[1].data_offsets)
    for name, tensor in by_place:
        begin, stop = tensor.data_offsets
        problem: Any = None
        if tensor.dtype not in BITS:
            problem = f"is of an unknown type {tensor.dtype[:20]!r}"
        elif min(tensor.shape, default=0) < 0 or begin != end or stop < begin:
            problem = "does not begin where the one before it ends"
        elif (stop - begin) * 8 != tensor.elements * BITS[tensor.dtype]:
            problem = f"has {stop - begin} bytes, and a shape of {tensor.elements} {tensor.dtype}"
        elif stop > size:
            problem = f"ends at byte {stop} of {size}: the file is cut off"
        if problem:
            raise ConfigError(f"{where}: tensor {name[:80]!r} {problem}; download it again")
        end = stop
    if end != size:
        raise ConfigError(
            f"{where}: its tensors end at byte {end} of {size}: the file is not what its header"
            " says; download it again"
        )
