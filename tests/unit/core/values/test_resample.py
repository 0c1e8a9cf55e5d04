"""How do samples of one rate become samples of another?"""

import numpy as np
import pytest

from wherry.core.values.audio_bytes import resampled

PAIRS = [(44_100, 16_000), (48_000, 16_000), (8_000, 16_000), (44_100, 48_000), (16_001, 16_000)]


def _sine(
    hz: float, rate: int, seconds: float = 0.5
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("part", [0.01, 0.3, 0.84])
def test_a_tone_keeps_strength_and_place(old: int, new: int, part: float) -> None:
    hz = part * min(old, new) / 2

    found = resampled(_sine(hz, old), old, new)

    assert len(found) == -(-round(old * 0.5) * new // old)
    inner = slice(len(found) // 4, 3 * len(found) // 4)
    wanted = np.sin(2 * np.pi * hz * np.arange(len(found)) / new)[inner]
    assert np.abs(found[inner] - wanted).max() < 1e-3


@pytest.mark.parametrize(("old", "new"), [(44_100, 16_000), (48_000, 16_000), (16_001, 8_000)])
def test_what_would_fold_back_is_gone(old: int, new: int) -> None:
    found = resampled(_sine(1.02 * new / 2, old), old, new)

    inner = found[len(found) // 4 : 3 * len(found) // 4]
    assert 20 * np.log10(np.abs(inner).max()) < -90


def test_channels_are_each_as_they_would_be_alone() -> None:
    both = np.stack([_sine(100, 8000), _sine(900, 8000)], axis=1)

    found = resampled(both, 8000, 11_025)

    assert np.allclose(found[:, 1], resampled(both[:, 1].copy(), 8000, 11_025), atol=1e-6)


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_few_samples_are_enough(frames: int) -> None:
    assert len(resampled(np.ones(frames, np.float32), 8000, 16_000)) == 2 * frames
    assert len(resampled(np.ones(frames, np.float32), 48_000, 16_000)) == -(-frames // 3)
