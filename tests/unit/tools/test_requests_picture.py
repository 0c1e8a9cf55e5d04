"""tools/requests_picture.py: it is a whole SVG, in which every dot is seen and leaves."""

import re
from typing import Any
from xml.etree import ElementTree

from tools.requests_picture import LONG, dots, picture


def batch(number: int, started: float, came: list[float], instance: str) -> dict[str, Any]:
    parts = {"input_seconds": 0.001, "infer_seconds": 0.02, "output_seconds": 0.001}
    requests = [["", at, 1] for at in came]
    ended = started + 0.023
    return {
        "number": number, "instance": instance, "started": started, "ended": ended,
        "requests": requests, **parts,
    }  # fmt: skip


BATCHES = [
    batch(1, 10.000, [9.999], "m_0"),
    batch(2, 10.004, [10.001, 10.002], "m_1"),
    batch(3, 10.025, [10.003 + 0.001 * one for one in range(8)], "m_0"),
    batch(4, 99.0, [98.9], ""),
]


def test_each_request_is_a_dot_that_is_seen_and_gone() -> None:
    svg = ElementTree.fromstring(picture(BATCHES))
    circles = [one for one in svg.iter() if one.tag.endswith("circle")]
    style = next(one.text or "" for one in svg.iter() if one.tag.endswith("style"))
    found, lanes, _ = dots(BATCHES)

    assert lanes == ["m_0", "m_1"]
    assert len(circles) == len(found) == 8  # the first ones came before the picture begins
    for number in range(len(found)):
        (frames,) = re.findall(rf"@keyframes k{number}{{(.*?}})}}", style)
        seen = re.findall(r"opacity:(\d)", frames)
        assert (seen[0], seen[-1]) == ("0", "0")
        assert "1" in seen
        shares = [float(one) for one in re.findall(r"([\d.]+)%", frames)]
        assert shares == sorted(shares)


def test_the_order_of_stages_is_kept_and_batch_mates_have_one_colour() -> None:
    found, _, slow = dots(BATCHES)
    assert slow > 1
    for one in found:
        assert 0 < one.came < one.starts < one.leaves < LONG
    assert len({one.batch for one in found if one.mates == 8}) == 1
