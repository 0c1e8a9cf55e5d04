"""How do samples of one rate become samples of another?

Band-limited interpolation: each new sample is a sum of old ones, weighted by a sinc under a Kaiser
window. Frequencies up to 84 % of the lower Nyquist frequency keep their strength within 0.01 dB;
what would fold back is 90 dB down.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

#: Zero crossings of the sinc on each side, and the window's shape: about 90 dB.
_CROSSINGS: Final = 32
_BETA: Final = 8.96
#: The middle of the transition, as a part of the lower Nyquist frequency.
_CUTOFF: Final = 0.915
#: So many outputs in turn have weights of their own, made together.
_PHASES: Final = 256


def resampled(
    samples: npt.NDArray[np.float32], old_rate: int, new_rate: int
) -> npt.NDArray[np.float32]:
    """`samples` [frames] or [frames, channels] at another rate; ceil(frames x new / old) frames."""
    common = math.gcd(old_rate, new_rate)
    up, down = new_rate // common, old_rate // common
    count = -(-len(samples) * up // down)
    margin = math.ceil(_CROSSINGS * max(1.0, down / up) / _CUTOFF)
    padded = np.pad(samples, [(margin, margin)] + [(0, 0)] * (samples.ndim - 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * margin + 1, axis=0)
    found = np.empty((count, *samples.shape[1:]), np.float32)
    for first in range(0, min(up, count), _PHASES):
        phases = np.arange(first, min(up, count, first + _PHASES))
        for phase, weights in zip(phases.tolist(), _weights(phases, up, down, margin), strict=True):
            place = found[phase::up]  # each up-th output lies alike between old samples
            start = phase * down // up
            np.matmul(windows[start : start + len(place) * down : down], weights, out=place)
    return found


def _weights(
    phases: npt.NDArray[np.int64], up: int, down: int, margin: int
) -> npt.NDArray[np.float32]:
    """For each phase what the old samples around an output weigh, [phases, 2 * margin + 1]."""
    between = (phases * down % up / up)[:, np.newaxis]
    away = np.arange(-margin, margin + 1) - between
    window = np.i0(_BETA * np.sqrt(np.clip(1 - (away / margin) ** 2, 0, None)))
    weights = window * np.sinc(away * _CUTOFF * min(1.0, up / down))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)
