"""frontends/grpc/floods.py: what a client may do between two sweeps."""

import pytest

from wherry.frontends.grpc.floods import MAX_NOISE, MAX_RESETS, FloodLimits
from wherry.frontends.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault


def test_resets_and_noise_have_a_limit_each() -> None:
    floods = FloodLimits()
    floods.note_reset(MAX_RESETS)
    floods.note_noise(MAX_NOISE)
    for note in (floods.note_reset, floods.note_noise):
        with pytest.raises(ConnectionFault) as caught:
            note()
        assert caught.value.code == ENHANCE_YOUR_CALM


def test_a_sweep_begins_to_count_anew() -> None:
    floods = FloodLimits()
    for _ in range(3):
        floods.note_reset(MAX_RESETS)
        floods.note_noise(MAX_NOISE)
        floods.clear()
