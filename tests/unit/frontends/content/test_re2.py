"""frontends/content/re2.py: patterns as Triton's users write them."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress

import pytest

from tests.costs import assert_linear
from wherry.frontends.content.re2 import python_pattern


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("my_.*", ["MY_A", "x-my_b"], ["y_"]),
        ("(?-i)MY_.*", ["MY_A"], ["my_a", "My_a"]),
        ("(?i)my_.*", ["MY_A", "my_a"], ["y"]),
        ("a(?-i)b|c", ["ab", "Ab", "c"], ["aB", "C"]),
        ("(?-i)x(?i)y", ["xy", "xY"], ["Xy"]),
        ("((?-i)x|z)y", ["xy", "xY", "zY"], ["Xy", "Zy"]),
        ("(?-i:x)y", ["xY"], ["Xy"]),
        (r"\Aab\z", ["ab", "AB"], ["ab\n", "xab"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb"]),
        (r"\Qa.(", ["a.("], ["axx"]),
        ("(?<first>a)b", ["ab"], ["b"]),
        ("(?P<first>a)b", ["ab"], ["b"]),
        ("^[[:alpha:]_]+$", ["ab_c"], ["ab1"]),
        ("^[^[:digit:]]+$", ["ab["], ["a1"]),
        ("^[a[]$", ["[", "a"], ["b"]),
        ("^[]a]$", ["]", "a"], ["b"]),
        (r"^[\]|(]+$", ["]|("], ["a"]),
        (r"\x{2d}a", ["x-a"], ["xa"]),
        ("(?i)(?-i)a", ["a"], ["A"]),
        ("(?-i)a|(?i)(?-i)b|c", ["a", "b", "c"], ["A", "B", "C"]),
        ("(?-i)a|(?i)b|c", ["a", "b", "C"], ["A"]),
        (r"\(a|b\)", ["(a", "b)"], ["a"]),
        ("(?:a|b)c", ["AC", "bc"], ["c"]),
        ("", ["", "a"], []),
    ],
)
def test_a_pattern_finds_what_re2_finds(
    pattern: str, found: list[str], not_found: list[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = re.compile(python_pattern(pattern), re.IGNORECASE).search
    assert [name for name in found if not search(name)] == []
    assert [name for name in not_found if search(name)] == []


@pytest.mark.parametrize("pattern", [r"\pL", r"\p{Greek}", "(?U)a*", "[[:nope:]]", r"\C"])
def test_what_python_cannot_do_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not taken"):
        python_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", ")", "a)", "(?-", "[a", "[[:alpha:]", "[]", "*", "(?z)", "\\"]
)
def test_what_is_no_pattern_is_an_error_of_re(pattern: str) -> None:
    with pytest.raises(re.error):
        re.compile(python_pattern(pattern))


@pytest.mark.parametrize(
    "part",
    ["a", "[", "[a]", "(", "(?i", "(?i)", "|(?i)|(?-i)", r"\Q", r"\x{41}", "[[:alpha:]]", "[:"],
)
def test_a_pattern_costs_what_its_characters_are_worth(part: str) -> None:
    def read(pattern: str) -> None:
        with suppress(re.error):
            python_pattern(pattern)

    assert_linear(read, lambda size: part * size, largest=2**15)
