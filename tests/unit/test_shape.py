"""A count that cannot fail holds nothing: the counts of the package's shape are judged here."""

from pathlib import Path

import pytest

from tests.shape import BOUNDS, Allowed, Excess, complaints, excesses, read_allowed


def package_of(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "package"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def found(folder: Path, files: dict[str, str]) -> set[tuple[str, str, int]]:
    made = excesses(package_of(folder, files))
    return {(excess.measure, excess.name, excess.count) for excess in made}


def class_of(lines: int = 0, fields: int = 0) -> str:
    out = ["class A:", "    def __init__(self):", "        pass"]
    out += [f"        self.f{i} = 0" for i in range(fields)]
    return "\n".join(out + ["    0"] * (lines - len(out))) + "\n"


@pytest.mark.parametrize(("measure", "most"), [("class-lines", 400), ("class-fields", 20)])
def test_a_class_may_reach_its_bound_but_not_exceed_it(
    tmp_path: Path, measure: str, most: int
) -> None:
    kind = measure.removeprefix("class-")
    assert not found(tmp_path, {"a.py": class_of(**{kind: most})})
    assert found(tmp_path, {"a.py": class_of(**{kind: most + 1})}) == {(measure, "a.A", most + 1)}


def test_a_part_has_a_budget_of_lines_and_of_names_that_it_offers(tmp_path: Path) -> None:
    names = "".join(f"from package.part.a import f{i} as f{i}\n" for i in range(31))
    files = {"part/api.py": names, "part/a.py": "0\n" * 970}
    assert found(tmp_path, files) == {("part-names", "part", 31), ("part-lines", "part", 1001)}


def test_a_record_may_have_any_number_of_fields(tmp_path: Path) -> None:
    fields = "".join(f"    f{i}: int\n" for i in range(30))
    assert not found(tmp_path, {"a.py": f"class A:\n{fields}"})
    changes = "    def m(self):\n        self.f0 = 1\n"
    assert ("class-fields", "a.A", 30) in found(tmp_path, {"a.py": f"class A:\n{fields}{changes}"})


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    files = {"a.py": "class A: pass\n", "b/c.py": "class A: pass\n"}
    assert found(tmp_path, files) == {("class-name", "A", 2)}


def test_one_function_in_a_hundred_may_be_long(tmp_path: Path) -> None:
    long = "def f():\n" + "    0\n" * 40
    short = "def g(): pass\n" * 99
    assert not found(tmp_path, {"a.py": long + short})
    assert found(tmp_path, {"a.py": long + long + short}) == {("long-functions", "all", 2)}


def test_five_functions_may_have_many_parameters(tmp_path: Path) -> None:
    wide = "def f(a, b, c, d, /, e, f, *g, h, **i): pass\n"
    method = "class A:\n    def f(self, a, b, c, d, e, f, g, h): pass\n"
    assert not found(tmp_path, {"a.py": wide * 5 + method})
    assert found(tmp_path, {"a.py": wide * 6}) == {("many-parameters", "all", 6)}


@pytest.mark.parametrize(
    "use",
    ["from package.b import _f", "def f(b): b._x", "class A:\n  def f(self): self.b._x"],
)
def test_a_private_name_of_another_file_is_found_in_the_core(tmp_path: Path, use: str) -> None:
    assert found(tmp_path, {"a.py": use, "b.py": ""}) == {("private-names", "a", 1)}
    assert not found(tmp_path / "outside", {"bench/a.py": use, "b.py": ""})


def test_private_names_of_this_file_and_of_other_packages_are_none_of_another_file(
    tmp_path: Path,
) -> None:
    own = "class A:\n  __slots__ = ('_y',)\n  def f(self, b):\n    self._x = b._x + b._y\n"
    foreign = "import os.path\nfrom torch import ops\nos._exit(0)\nops.mkldnn._f()\n"
    assert not found(tmp_path, {"a.py": own, "b.py": foreign})


@pytest.mark.parametrize(
    "back",
    ["import_", "if TYPE_CHECKING:\n  import_", "def f():\n  import_"],
)
def test_modules_that_import_each_other_are_found(tmp_path: Path, back: str) -> None:
    files = {
        "a.py": "from package.b import c",
        "b/__init__.py": "",
        "b/c.py": "from .d import x",
        "b/d.py": back.replace("import_", "from package.a import f"),
    }
    assert found(tmp_path, files) == {("circle", "a", 3)}
    assert not found(tmp_path, files | {"b/d.py": ""})


def test_what_an_api_offers_counts_where_it_is(tmp_path: Path) -> None:
    files = {
        "part/api.py": "from package.part.b import f as f",
        "part/__init__.py": "",
        "part/b.py": "from package.a import g",
        "a.py": "from package.part.api import f",
    }
    assert found(tmp_path, files) == {("circle", "a", 2)}
    assert not found(tmp_path, files | {"part/b.py": ""})


def test_a_package_has_at_most_twelve_entries(tmp_path: Path) -> None:
    files = {f"{name}.py": "" for name in "abcdefghijk"}
    assert not found(tmp_path, files)
    assert found(tmp_path, files | {"t/__init__.py": ""}) == {("top-level", "all", 13)}


BIG = Excess("class-lines", "room.a.A", 500)


def test_an_exception_allows_its_count_and_no_more() -> None:
    assert not complaints([BIG], [Allowed("class-lines", "a.A", 500, "because")])
    assert not complaints([BIG], [Allowed("class-lines", "a.A", 600, "because")])
    (said,) = complaints([BIG], [Allowed("class-lines", "a.A", 499, "because")])
    assert "it has grown" in said


@pytest.mark.parametrize(
    "line",
    [
        Allowed("class-lines", "b.A", 400, "another module"),
        Allowed("class-lines", "m.a.A", 400, "not a whole word"),
        Allowed("class-fields", "a.A", 400, "another measure"),
    ],
)
def test_an_exception_for_something_else_is_to_be_removed(line: Allowed) -> None:
    exceeds, unneeded = complaints([BIG], [line])
    assert "room.a.A is 500, at most 400" in exceeds
    assert "remove its line" in unneeded


@pytest.mark.parametrize(
    "line", ["class-lines a.A 400", "class-lines a.A big because", "lines a.A 400 because"]
)
def test_an_exception_needs_a_measure_a_count_and_a_reason(line: str) -> None:
    with pytest.raises(ValueError, match="measure name count reason"):
        read_allowed(line)


def test_every_measure_can_have_exceptions() -> None:
    text = "# a comment\n\n" + "\n".join(f"{measure} a.A 9 so it is" for measure in BOUNDS)
    assert [line.measure for line in read_allowed(text)] == list(BOUNDS)
    assert read_allowed(text)[0].reason == "so it is"
