"""server/v2/long_arrays.py: a body in pieces says what the whole says."""

import contextlib
import json
import random
from typing import Any

import msgspec
import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import InvalidRequest, RequestTooLarge
from wherry.server.v2 import long_arrays
from wherry.server.v2.long_arrays import check_values, fold

Rng = random.Random


@pytest.fixture(params=[8, 33, 1000], ids=lambda size: f"slices of {size}")
def small_slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "SLICE_BYTES", request.param)
    monkeypatch.setattr(long_arrays, "KEPT_BYTES", 5)
    monkeypatch.setattr(long_arrays, "give_way", lambda: None)


def made(rng: Rng, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.3 or depth == 0:
        return rng.choice([1, -2.5, 1e300, True, None, 123456])
    if kind < 0.6:
        return "".join(rng.choice('ab"\\,[]{} é\n:') for _ in range(rng.randrange(8)))
    if kind < 0.9:
        return [made(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {f"{i}" + rng.choice('",[]{}\\'): made(rng, depth - 1) for i in range(rng.randrange(3))}


def flat(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in flat(one)] if isinstance(value, list) else [value]


def read(body: bytes) -> dict[str, list[Any]]:
    """The members of an object, the leaves of each; ValueError if it is none."""
    folded = fold(body, "{")
    members = msgspec.json.decode(folded.envelope, type=dict[str, msgspec.Raw])
    found: dict[str, list[Any]] = {}
    for name, value in members.items():
        array = folded.find(value)
        texts = [bytes(value)] if array is None else array.texts()
        found[name] = [leaf for text in texts for leaf in flat(msgspec.json.decode(text))]
    return found


@pytest.mark.usefixtures("small_slices")
def test_the_pieces_of_an_array_hold_its_elements_in_their_order() -> None:
    rng = Rng(1)
    for _ in range(200):
        value = {"a,[": [made(rng, 4) for _ in range(rng.randrange(20))], "b": made(rng, 2)}
        body = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        assert read(body.encode()) == {name: flat(member) for name, member in value.items()}


@pytest.mark.usefixtures("small_slices")
def test_what_is_no_json_as_a_whole_is_none_in_pieces() -> None:
    rng = Rng(2)
    right = 0
    for _ in range(1000):
        body = json.dumps({"a": [made(rng, 3) for _ in range(8)]}, ensure_ascii=False)
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(body))
            body = body[:at] + rng.choice([*',[]{}"\\ 1', ""]) + body[at + rng.randrange(2) :]
        text = body.encode()
        try:
            whole = msgspec.json.decode(text, type=dict[str, Any])
        except ValueError:
            with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
                read(text)
        else:
            right += 1
            assert read(text) == {name: flat(member) for name, member in whole.items()}
    assert right > 30


@pytest.mark.parametrize("unit", [b" ", b"1", b"e"])
def test_a_run_without_any_structure_is_refused(unit: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"white space|512 digits"):
        fold(b'{"a":[' + unit * 2**20 + b"]}", "{")


@pytest.mark.parametrize(
    "unit",
    [
        b'"',
        b'""NaN',
        b"NaN" * 40_000 + b",",
        b"-Infinity" * 10_000 + b"[]",
        b"-" * 100_000 + b",",
        b'\\""NaN',
    ],
    ids=lambda unit: unit[:12],
)
@pytest.mark.parametrize("frame", [b'{"inputs":[NaN %b', b'{"inputs":[{"data":[NaN,"a",%b'])
def test_values_in_a_row_are_refused_before_anything_reads_them(unit: bytes, frame: bytes) -> None:
    body = frame % (unit * (2**18 // len(unit)))

    for look in (check_values, lambda body: fold(body, "{[{")):
        with pytest.raises(InvalidRequest, match="without a comma"):
            look(body)


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"-1e-5", rb'"\\\"-N"', b'{"-N":"-I"}'])
def test_values_that_are_separated_are_not_refused(value: bytes) -> None:
    body = b'{"a":[%b]}' % b",".join([value] * 2**15)

    assert fold(body, "{").envelope.startswith(b'{"a":')
    check_values(body)


@pytest.mark.parametrize("look", [check_values, lambda body: fold(body, "{[{")])
def test_numbers_are_bounded_as_their_square_is_what_they_take(look: Any) -> None:
    long = [b"1" * 512, b"-0." + b"1" * 512, b'"%b"' % (b"1" * 600)]
    look(b"[[%b]]" % b",".join(long * 200))
    with pytest.raises(InvalidRequest, match="more than 512 digits"):
        look(b"[[%b]]" % b",".join([*long * 200, b"1" * 513]))


def test_what_is_built_whole_is_bounded_by_what_it_takes_a_parser() -> None:
    check_values(b"[%b]" % b",".join([b"1"] * 2**17))
    with pytest.raises(RequestTooLarge, match="a name counts as 3"):
        check_values(b"{%b}" % b",".join([b'"a":1'] * (2**17 // 2 + 2**10)))
    with pytest.raises(RequestTooLarge, match="outside of texts"):
        check_values(b"[%b]" % b",".join([b"1" * 512] * (2**23 // 512)))


def test_what_stays_beside_the_long_arrays_is_bounded() -> None:
    with pytest.raises(RequestTooLarge, match="beside the data"):
        fold(b'{"unknown":{"a":[' + b"{}," * 2**20 + b"{}]}}", "{[{")


def test_an_element_that_cannot_be_cut_is_bounded() -> None:
    with pytest.raises(RequestTooLarge, match="one element"):
        fold(b'{"a":[{"b":[' + b"[]," * 2**20 + b"[]]}]}", "{")


@pytest.mark.parametrize("frame", [b'{"a":%b', b"%b"])
def test_deep_nesting_is_refused_at_once(frame: bytes) -> None:
    with pytest.raises(InvalidRequest, match="nesting depth"):
        fold(frame % (b"[" * 2**20), "{")


def test_a_client_cannot_name_an_array_itself() -> None:
    folded = fold(b'{"a":[' + b"1," * 1000 + b'1],"b":["",0]}', "{")
    members = msgspec.json.decode(folded.envelope, type=dict[str, msgspec.Raw])
    assert folded.find(members["a"]) is not None
    assert folded.find(members["b"]) is None


def test_an_element_is_bounded() -> None:
    folded = fold(b'{"a":["' + b"x" * 2**25 + b'"]}', "{")
    array = folded.find(msgspec.json.decode(folded.envelope, type=dict[str, msgspec.Raw])["a"])
    assert array is not None
    with pytest.raises(RequestTooLarge, match="binary data"):
        list(array.texts())


UNITS = (
    b"[],", b"[[1],[2]],", b"{},", b'"",', b'"\\\\",', b"1,", b'{"data":[1],"shape":[]},',
    b'{"data":[' + b"[]," * 100 + b"[]]},", b'{"data":[' + b"1," * 200 + b"1]},",
)  # fmt: skip


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit[:12])
@pytest.mark.parametrize("frame", [b'{"inputs":[%b0]}', b'{"inputs":[{"data":[%b0]}]}'])
def test_a_body_is_walked_in_proportion_to_its_bytes(frame: bytes, unit: bytes) -> None:
    def walk(body: bytes) -> None:
        with contextlib.suppress(InvalidRequest, ValueError):
            fold(body, "{[{")

    assert_linear(
        walk, lambda size: frame % (unit * (size // len(unit))), smallest=2**14, largest=2**20
    )
