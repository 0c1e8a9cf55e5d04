"""frontends/openai/encodings.py: numbers as bytes of vLLM's types."""

from __future__ import annotations

import numpy as np
import pytest

from wherry.frontends.openai.encodings import SIZES, encoded

#: Bits of numbers: exact ones, halves between two (to the even one), too large, too small, none.
BITS = {
    "bfloat16": {
        1.0: 0x3F80, -2.5: 0xC020, 1.00390625: 0x3F80, 1.01171875: 0x3F82, 3.4e38: 0x7F80,
        np.inf: 0x7F80, -np.inf: 0xFF80, 0.0: 0,
    },
    "float16": {1.0: 0x3C00, -2.5: 0xC100, 1e6: 0x7C00, 1.00048828125: 0x3C00, 6e-8: 1},
    "fp8_e4m3": {
        1.0: 0x38, -1.5: 0xBC, 1.0625: 0x38, 1.1875: 0x3A, 448: 0x7E, 1e9: 0x7E, -np.inf: 0xFE,
        2.0**-9: 1, 2.0**-10: 0, 3 * 2.0**-10: 2, 0.0: 0,
    },
    "fp8_e5m2": {
        1.0: 0x3C, -1.5: 0xBE, 1.125: 0x3C, 1.375: 0x3E, 57344: 0x7B, 61440: 0x7C, 1e9: 0x7C,
        2.0**-16: 1, 2.0**-17: 0, 3 * 2.0**-17: 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", BITS)
def test_a_number_becomes_the_nearest_of_its_type(dtype: str) -> None:
    told = encoded(np.array([*BITS[dtype]]), dtype, "little")
    kind = f"<u{SIZES[dtype]}"
    assert np.frombuffer(told, kind).tolist() == [*BITS[dtype].values()]


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "bfloat16"])
def test_no_number_is_none(dtype: str) -> None:
    (bits,) = np.frombuffer(encoded(np.array([np.nan]), dtype, "little"), f"<u{SIZES[dtype]}")
    largest = {"fp8_e4m3": 0x7E, "fp8_e5m2": 0x7C, "bfloat16": 0x7F80}[dtype]
    assert largest < bits < 2 * largest


@pytest.mark.parametrize("dtype", SIZES)
def test_bytes_come_in_the_order_that_is_asked_for(dtype: str) -> None:
    numbers = np.array([[1.5, -3.0], [0.25, 7.0]], np.float32)
    big, little = (encoded(numbers, dtype, order) for order in ("big", "little"))
    size = SIZES[dtype]
    assert len(big) == 4 * size
    turned = [little[at : at + size][::-1] for at in range(0, len(little), size)]
    assert b"".join(turned) == big
    assert encoded(numbers, dtype, "native") in (big, little)


@pytest.mark.parametrize(("dtype", "kind"), [("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2",) * 2])
def test_numbers_are_rounded_as_torch_rounds_them(dtype: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    kind = kind.replace("fp8", "float8")
    sizes = 10.0 ** np.random.default_rng(7).uniform(-8, 5, 20_000)
    numbers = (sizes * np.resize([1, -1], len(sizes))).astype(np.float32)
    wanted = torch.from_numpy(numbers).to(getattr(torch, kind)).view(torch.uint8).numpy()
    assert encoded(numbers, dtype, "native") == wanted.tobytes()
