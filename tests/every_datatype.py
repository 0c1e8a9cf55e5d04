"""Which values and models do the tests of both of Triton's clients share?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

import wherry

#: By datatype: some values that only it can hold
NUMBERS: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 2**16 - 1],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 1, 2**64 - 1],
    "INT8": [-128, 0, 127],
    "INT16": [-(2**15), 0, 2**15 - 1],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "FP16": [-1.5, 0, 65504],
    "FP32": [-1.5, np.inf, 3e38],
    "FP64": [-1.5, 0.1, 1e308],
    "BF16": [-1.5, 0, 2.0**100],
}


def echo_of(datatype: str) -> wherry.Model:
    kind = getattr(wherry, datatype)[3]

    def echo(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x

    echo.__annotations__ = dict.fromkeys(("x", "return"), Annotated[np.ndarray, kind])
    return wherry.model(name=f"echo_{datatype}", max_batch_size=4)(echo)


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise wherry.InvalidRequest("that is a bad word")
    return [t.upper() for t in text]
