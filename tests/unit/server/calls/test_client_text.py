"""What of a text about the server's models may its clients see?"""

import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import (
    ConfigError,
    InvalidRequest,
    LoadFailed,
    ModelFailed,
    Unsupported,
)
from wherry.server.calls.client_text import text_of, without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: /srv/models/x/1/model.py", "no such file: model.py"),
        ("[Errno 2] No such file: '/srv/my models/x y.bin'", "[Errno 2] No such file: 'x y.bin'"),
        ('File "/usr/lib/python3/site-packages/a.py", line 3', 'File "a.py", line 3'),
        ("/srv/x/model.py:12: bad", "model.py:12: bad"),
        ("(/srv/x/model.py)", "(model.py)"),
        ("path=/srv/x", "path=x"),
        ("error:/srv/x", "error:x"),
        ("LD_PATH:/usr/lib:/opt/lib", "LD_PATH:lib:lib"),
        ("in /tmp", "in tmp"),
        ("</srv/x>", "<x>"),
        ("in /tmp/", "in tmp"),
        ("['/a/b', '/c/d']", "['b', 'd']"),
        ("file:///srv/x/m.bin is gone", "m.bin is gone"),
        ("~/models/x", "~x"),
        ("-L/usr/lib/x", "-Lx"),
        ("/srv/x\n/srv/y", "x\ny"),
        ("don't open '/srv/x/y'", "don't open 'y'"),
        ("`/srv/x/y`", "`y`"),
        ("\u201c/srv/x/y\u201d", "\u201cy\u201d"),
    ],
)
def test_a_path_becomes_the_name_of_its_file(text: str, shown: str) -> None:
    assert without_paths(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a / b",
        "1/2",
        "and/or",
        "x/1/model.py",
        "<b>bold</b>",
        "./x/y",
        "../x",
        "see https://a.example/b/c?d=e",
    ],
)
def test_what_is_no_absolute_path_stays(text: str) -> None:
    assert without_paths(text) == text


def test_errors_of_models_lose_their_paths_and_words_for_clients_stay() -> None:
    for kind in (ModelFailed, LoadFailed, ConfigError):
        assert text_of(kind("no /srv/x/y.bin")) == "no y.bin"
    for theirs in (InvalidRequest, Unsupported):
        assert text_of(theirs("use /v2/models/m/infer")) == "use /v2/models/m/infer"


@pytest.mark.parametrize(
    "piece",
    [
        "/",
        "//",
        "/a",
        "'/",
        "'/a",
        "'/a' ",
        '"/',
        "'/\"/",
        "'/\n",
        "file://",
        "file:///",
        "a",
        " /",
        "./",
    ],
)
def test_looking_for_paths_costs_in_proportion_to_the_text(piece: str) -> None:
    assert_linear(without_paths, lambda size: piece * size, largest=2**18)


def test_a_text_that_quotes_megabytes_of_a_request_is_cut() -> None:
    assert text_of(InvalidRequest("a" * 8192)) == "a" * 8192
    assert text_of(InvalidRequest("a" * 2**22)) == "a" * 8192 + "..."
