"""Is each line of tests/full.txt about tests that there are?"""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_line_names_a_file_and_a_test_that_there_are() -> None:
    lines = (ROOT / "tests/full.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert len(names) == len(set(names)) > 10
    for name in names:
        file, _, test = name.partition("::")
        function = test.partition("[")[0].strip("*")
        assert f"def {function}" in (ROOT / file).read_text(), name
