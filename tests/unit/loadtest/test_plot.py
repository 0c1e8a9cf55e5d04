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
    sweep = [point(callers=n, max_batch_size=size) for n in (1, 8) for size in (4, 32)]
    for points in ([point()], sweep):
        path = tmp_path / "report.png"
        draw(report(*points), str(path))
        assert path.read_bytes().startswith(b"\x89PNG")
