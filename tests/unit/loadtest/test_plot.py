"""The report as a picture."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from tests.unit.loadtest.reports import point, report
from wherry.loadtest.plot import draw


@pytest.fixture(autouse=True, scope="session")
def _matplotlib_has_its_fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It opens them once in the process's life, with the first picture: no leak."""
    draw(report(point()), str(tmp_path_factory.mktemp("plot") / "first.png"))


def test_one_run_and_a_sweep_become_a_png(tmp_path: Path) -> None:
    path = tmp_path / "report.png"
    draw(report(point()), str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    width = _width(path)
    sweep = [point(callers=n, max_batch_size=size) for n in (1, 8) for size in (4, "auto")]
    draw(report(*sweep), str(path))
    assert _width(path) > width  # the heat maps stand beside it


def test_points_that_all_failed_leave_their_place_empty(tmp_path: Path) -> None:
    sweep = [point(callers=n, max_batch_size=size) for n in (1, 8) for size in (4, 32)]
    for failed in sweep:
        failed.figures.latency = None
    path = tmp_path / "report.png"
    draw(report(*sweep[:3]), str(path))
    assert path.stat().st_size > 0


def _width(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:20])
