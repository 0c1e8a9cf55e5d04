"""observability/grafana: the board is one that Grafana takes, and says what each panel is for."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.grafana import board, rules
from tools.grafana.board import FILE, text
from tools.grafana.panels import COLUMNS
from wherry.server.cli import main


def panels(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Headings of rows, and all panels, folded ones too."""
    for panel in made["panels"]:
        yield panel
        yield from panel.get("panels", ())


def lost(told: Any, kept: Any, where: str = "") -> Iterator[str]:
    """What of `told` is not in `kept`, or is there something else."""
    if isinstance(told, dict) and isinstance(kept, dict):
        for key, value in told.items():
            if key in kept:
                yield from lost(value, kept[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}"
    elif isinstance(told, list) and isinstance(kept, list) and len(told) == len(kept):
        for i, (one, other) in enumerate(zip(told, kept, strict=True)):
            yield from lost(one, other, f"{where}/{i}")
    elif told != kept:
        yield f"{where}: {told!r} became {kept!r}"


def test_the_file_is_what_make_board_writes() -> None:
    assert FILE.read_text() == text()


def test_grafanas_own_types_know_every_field_and_value_of_the_board() -> None:
    plugins.register_default_plugins()
    made = board()
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(made)))
    # What a heatmap's tooltip shows is `show` before Grafana 10.3, and `mode` from then on.
    mode = re.compile(r"/panels/\d+(/panels/\d+)?/options/tooltip/(mode|show)")
    assert [where for where in lost(made, read) if not mode.fullmatch(where)] == []


def test_every_unit_is_one_of_grafanas() -> None:
    known = {str(value.__args__[0]) for value in vars(units).values() if hasattr(value, "__args__")}
    known |= {value for value in vars(units).values() if isinstance(value, str)}
    used = {p["fieldConfig"]["defaults"]["unit"] for p in panels(board()) if p["type"] != "row"}
    assert {unit for unit in used if not unit.startswith("suffix:")} <= known


def test_every_panel_has_its_own_number_its_own_title_and_says_what_it_is_for() -> None:
    every = list(panels(board()))
    assert len({panel["id"] for panel in every}) == len(every)
    drawn = [panel for panel in every if panel["type"] != "row"]
    assert len({panel["title"] for panel in drawn}) == len(drawn)
    for panel in drawn:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        assert "<" not in re.sub(r" <=? ", "", panel["targets"][0]["expr"]), panel["title"]


def test_no_two_panels_are_in_the_same_place_and_none_is_outside_the_grid() -> None:
    made = board()["panels"]
    for together in (list(made), *([p, *p["panels"]] for p in made if p.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in together:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= COLUMNS
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not taken & cells, panel["title"]
            taken |= cells


def test_the_command_prints_the_board_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana"]) == 0
    assert json.loads(capsys.readouterr().out) == board()


def test_the_command_prints_the_alert_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana", "--alerts"]) == 0
    assert capsys.readouterr().out == rules()
