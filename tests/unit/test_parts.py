"""Does each test belong to one part, so that `make test PART=...` leaves none out?"""

from pathlib import Path

from tests.parts import INTEGRATION, TESTS, paths


def test_each_file_of_integration_is_in_one_part() -> None:
    named = sorted(path for part in INTEGRATION for path in paths(part))
    assert [path for path in named if not path.exists()] == []
    files = sorted(TESTS.glob("integration/test_*.py"))
    assert [path for path in named if path.parent.name == "integration"] == files


def test_each_part_has_its_folder() -> None:
    parts = {path.parent.name for path in (TESTS.parent / "wherry").glob("*/api.py")}
    assert parts <= INTEGRATION.keys()
    assert all(Path(TESTS, "unit", part) in paths(part) for part in INTEGRATION)
