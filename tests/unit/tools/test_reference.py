"""tools.reference: what is public is told, with its signature and an example, as in the code."""

from __future__ import annotations

import ast
import importlib

import pytest

import wherry
from tools.public_api.promise import MODULES
from tools.reference.__main__ import PAGES
from tools.reference.definitions import ROOT, Definition, define
from tools.reference.python import ERRORS, SECTIONS, as_markdown, public, split
from wherry.core.values.datatypes import DATATYPES

NAMES = [
    (module, name)
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if name not in DATATYPES and name not in ERRORS and name not in ("Image", "__version__")
]


def found(module: str, name: str) -> Definition:
    definition = define(module, name)
    assert definition is not None
    return definition


def test_every_public_name_has_its_place() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted([*named, *ERRORS, *DATATYPES, "__version__"]) == sorted(wherry.__all__), (
        "add it to SECTIONS of tools/reference/python.py"
    )
    text = "".join((ROOT / "docs/reference" / page).read_text() for page in PAGES)
    missing = [
        f"{module}.{name}"
        for module in MODULES
        for name in importlib.import_module(module).__all__
        if f"`{module}.{name}`" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: str(one))
def test_every_public_name_is_told_with_an_example(module: str, name: str) -> None:
    doc = found(module, name).doc
    assert doc, f"{module}.{name} has no docstring"
    assert "```python" in as_markdown(doc, "python"), (
        f"the docstring of {module}.{name} has no example: indented lines after an empty one"
    )


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: str(one))
def test_every_method_and_field_of_a_public_class_is_told(module: str, name: str) -> None:
    definition = found(module, name)
    if not isinstance(definition.node, ast.ClassDef):
        return
    own, public_bases = split(definition)
    silent = [one.name for owner in own for one in owner.fields() if not one.meaning]
    if not public_bases:  # else it may do again what the base class says
        silent += [one.name for owner in own for one in owner.methods() if not one.doc]
    assert silent == []


def test_public_names_come_from_their_modules() -> None:
    assert public("wherry.testing")[-1] == "running_server"


def test_what_is_indented_in_a_docstring_is_code() -> None:
    doc = "Do it.\n\n    do(\n        it,\n    )\n\n    again()\n\nAnd more:\n- a list\n  of two"
    assert as_markdown(doc, "python") == (
        "Do it.\n\n```python\ndo(\n    it,\n)\n\nagain()\n```\n\nAnd more:\n- a list\n  of two"
    )
