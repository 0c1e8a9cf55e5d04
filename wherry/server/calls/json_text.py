"""How is a value written as JSON?"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import plain


def _plain(value: Any) -> Any:
    """Convert a numpy value, which models put into their JSON rows, to JSON's own types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return plain(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)
encode_json = _ENCODER.encode
