"""benchmarks.peers.picture: the picture of the README is what was measured."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from benchmarks.harness import ROOT
from benchmarks.peers.page import RESULTS
from benchmarks.peers.picture import CALLERS, PEERS, PICTURE, drawn, panels

RECORD = json.loads(RESULTS.read_text())


def test_the_picture_is_drawn_from_the_results() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(RECORD), (
        "run: python -m benchmarks.peers.picture"
    )


def test_the_picture_has_a_bar_for_each_peer_and_number_of_callers() -> None:
    bars = [
        rect
        for rect in ET.fromstring(drawn(RECORD)).iter("{http://www.w3.org/2000/svg}rect")
        if rect.get("class") in PEERS and float(rect.get("width", 0)) > 12
    ]
    assert len(bars) == 2 * len(PEERS) * len(CALLERS)
    assert min(float(bar.get("y", 0)) for bar in bars) >= 0


def test_the_words_beside_the_picture_are_its_figures() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for peer, shares in panels(RECORD)[0].values.items():
        verb = " gives" if peer == "wherry" else ""
        assert f"{peer}{verb} {min(shares):.0f} to {max(shares):.0f} %" in readme


def test_what_no_peer_was_measured_with_is_not_drawn() -> None:
    with pytest.raises(KeyError):
        panels({"cells": []})
