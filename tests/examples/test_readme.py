"""What the README shows, runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_python_in_the_readme_runs(number: int) -> None:
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), {"__name__": "readme"})


def test_the_readme_has_code() -> None:
    assert BLOCKS
