"""Are the keywords of a Server that type checkers see its options, and of their types?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from wherry.server.keywords import ServerOptions
from wherry.server.options import OF_A_SERVER, OPTIONS, Capacity, Option, Options


def test_the_keywords_that_a_program_passes_are_the_options_of_a_server() -> None:
    options = {one.keyword: loose(one) for one in OPTIONS.values() if one.keyword}
    options["limits"] = get_type_hints(Capacity)["limits"]
    groups = get_type_hints(Options)
    options |= {name: groups[name] for name in (*OF_A_SERVER, "command_line")}
    of_its_own = {"host", "port", "grpc_port"}
    expected = {name: kind for name, kind in options.items() if name not in of_its_own}
    assert get_type_hints(ServerOptions) == expected


def loose(option: Option) -> Any:
    """Its type with any sequence in place of a tuple, and with paths."""
    if option.metavar == "PATH":
        return str | Path | None
    return Sequence[str] if get_origin(option.type) is tuple else option.type
