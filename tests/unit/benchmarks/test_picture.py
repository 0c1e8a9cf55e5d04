"""The pictures of peers and of frameworks are what was measured."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from benchmarks import pages
from benchmarks.frameworks import picture as frameworks
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


def test_the_picture_of_frameworks_is_what_was_measured() -> None:
    record = pages.result("frameworks")
    svg = frameworks.PICTURE.read_text(encoding="utf-8")
    assert svg == frameworks.drawn(record), "run: python -m benchmarks.pages"
    shown = {rect.get("fill") for rect in ET.fromstring(svg).iter() if rect.get("rx")}
    assert shown == set(frameworks.COLOURS.values())
    assert frameworks.title(record).count(";") == len(frameworks.COLOURS) - 1


def test_what_no_peer_was_measured_with_is_not_drawn() -> None:
    with pytest.raises(KeyError):
        panels({"cells": []})
