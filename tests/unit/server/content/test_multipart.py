"""server/content/multipart.py: forms as senders write them, and as they should not."""

import random

import pytest

from tests.properties import seeds
from wherry.core.values.errors import InvalidRequest
from wherry.server.content.multipart import (
    MAX_HEADERS,
    MAX_VALUES,
    PIECE_BYTES,
    NamedValue,
    base_name,
    parts,
)

B = "XyZ123"
DISPOSITION = b'Content-Disposition: form-data; name="a"'


def part(data: bytes, *headers: bytes) -> bytes:
    head = b"\r\n".join(headers or (DISPOSITION,))
    return b"--XyZ123\r\n" + head + b"\r\n\r\n" + data + b"\r\n"


def body(*written: bytes) -> bytes:
    return b"".join(written) + b"--XyZ123--\r\n"


def read(text: bytes, most: int = MAX_VALUES) -> list[NamedValue]:
    return parts(text, B, most)


def data_of(value: NamedValue) -> bytes:
    assert not isinstance(value.data, str)
    return bytes(value.data)


def test_fields_and_files_come_in_order_with_what_is_said_of_them() -> None:
    found = read(
        body(
            part(b"7"),
            part(
                b"\x00\xff",
                b'content-disposition: form-data; name="b"; filename="caf\xc3\xa9.jpg"',
                b"CONTENT-TYPE: image/jpeg; x=1",
            ),
            part(b""),
        )
    )
    assert [one.name for one in found] == ["a", "b", "a"]
    assert [data_of(one) for one in found] == [b"7", b"\x00\xff", b""]
    assert [one.filename for one in found] == [None, "café.jpg", None]
    assert [one.media_type for one in found] == [None, "image/jpeg", None]


def test_no_part_at_all_is_a_form_without_values() -> None:
    assert read(body()) == []


def test_a_preamble_of_newlines_and_an_epilogue_are_no_values() -> None:
    assert len(read(b"\r\n" + body(part(b"x")) + b"the rest" * 100)) == 1


def test_a_large_file_is_a_view_of_the_body_and_no_copy() -> None:
    large = bytearray(body(part(bytes(3 * PIECE_BYTES))))
    (value,) = parts(memoryview(large), B, 4)
    assert isinstance(value.data, memoryview)
    assert value.data.obj is large


@pytest.mark.parametrize("seed", seeds(60))
def test_data_that_looks_like_a_boundary_at_any_place_comes_back_as_it_was(seed: int) -> None:
    choose = random.Random(seed)
    pieces = [
        b"\r\n--XyZ123",
        b"\r\n--XyZ12",
        b"\r\n--",
        b"\r\n",
        b"\r",
        b"-",
        b"a",
        b"\r\n--XyZ123-",
    ]
    files = []
    for _ in range(choose.randrange(1, 4)):
        near = b"".join(choose.choices([*pieces[1:-1], b"\0"], k=choose.randrange(12)))
        # Around the end of the piece that the parser is given at once.
        length = PIECE_BYTES - choose.randrange(200)
        files.append(bytes(choose.randrange(2) * length) + near + b"." * choose.randrange(3))
    found = read(body(*(part(one) for one in files)))
    assert [data_of(one) for one in found] == files


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "has no end"),
        (b"--XyZ123\r\n", "has no end"),
        (part(b"never ends")[:-2], "has no end"),
        (b"--other\r\n\r\n", "cannot be read"),
        (b"nothing of the kind", "cannot be read"),
        (part(b"x") + b"--XyZ12", "has no end"),
        (b"x" * 600_000, "cannot be read"),
        (b"\r\n" * 400_000, "has no end"),
        (body(part(b"x", b"Content-Type: text/plain")), "part 1 .* form-data; name"),
        (body(part(b"x", b'Content-Disposition: form-data; filename="a"')), "form-data; name"),
        (body(part(b"x", b'Content-Disposition: attachment; name="a"')), "form-data; name"),
        (body(part(b"x", b"Content-Disposition: form-data; name*=utf-8''a")), "form-data; name"),
        (body(part(b"x", b'Content-Disposition: form-data; name="\xff"')), "not UTF-8"),
        (body(part(b"x", DISPOSITION, DISPOSITION)), "'content-disposition' twice"),
        (body(part(b"eA==", DISPOSITION, b"Content-Transfer-Encoding: base64")), "must be binary"),
        (body(part(b"x", DISPOSITION, b"Content-Type: text/plain; charset=utf-16")), "utf-8"),
        (body(part(b"x", DISPOSITION, b"X: " + b"y" * 5000)), "header size"),
        (
            body(part(b"x", DISPOSITION, *[b"X%d: y" % i for i in range(MAX_HEADERS)])),
            "header count",
        ),
        (body(part(b"x", b"no colon here")), "cannot be read"),
        (body(part(b"x", DISPOSITION + b"\r\n folded: 1")), "cannot be read"),
        (b"--XyZ123\n" + DISPOSITION + b"\n\nx\n--XyZ123--\n", "cannot be read"),
        (b"--XyZ123\r\nA" + b"a" * 10_000, "header size"),
        (body(*(part(b"") for _ in range(MAX_VALUES + 1))), f"more than {MAX_VALUES} parts"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_the_reason(text: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        read(text)


def test_a_field_without_a_name_is_no_file() -> None:
    with pytest.raises(InvalidRequest, match=r"part 1 .* its name is empty"):
        read(body(part(b"7", b'Content-Disposition: form-data; name=""')))


@pytest.mark.parametrize("boundary", ["", "x" * 71, "é", "a\nb", "\x00"])
def test_a_boundary_that_cannot_be_one_is_refused(boundary: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary of 1 to 70"):
        parts(b"", boundary, 4)


@pytest.mark.parametrize("boundary", ["a b", "'()+_,-./:=?", "x" * 70, "-", "--"])
def test_odd_characters_of_a_boundary_are_its_own(boundary: str) -> None:
    mark = boundary.encode()
    text = b"--%b\r\n%b\r\n\r\nx\r\n--%b--\r\n" % (mark, DISPOSITION, mark)
    assert [data_of(one) for one in parts(text, boundary, 4)] == [b"x"]


def test_a_form_within_a_form_is_bytes_like_any_other() -> None:
    inner = b"--in\r\nContent-Disposition: file\r\n\r\ny\r\n--in--"
    (value,) = read(body(part(inner, DISPOSITION, b"Content-Type: multipart/mixed; boundary=in")))
    assert data_of(value) == inner


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("cat.jpg", "cat.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\cat.jpg", "cat.jpg"),
        ("/", ""),
        ("a\x00b\r\nX: y\u202e", "abX: y"),
    ],
)
def test_a_file_name_is_never_a_path(given: str, name: str) -> None:
    assert base_name(given) == name
