"""server/content/media_types.py: Content-Type and Accept."""

import pytest

from wherry.server.content.media_types import MediaType, names_type, preferred

OFFERS = ["image/png", "application/json"]


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("application/json", "application/json", {}),
        (" Image/JPEG ; q=1", "image/jpeg", {"q": "1"}),
        ("multipart/form-data; boundary=a-b_c", "multipart/form-data", {"boundary": "a-b_c"}),
        ('m/f; boundary="a b;c"; x=1', "m/f", {"boundary": "a b;c", "x": "1"}),
        (r'm/f; boundary="a\"b"', "m/f", {"boundary": 'a"b'}),
        ("m/f; Boundary=a; boundary=b", "m/f", {"boundary": "a"}),
        ("m/f; boundary=", "m/f", {"boundary": ""}),
        ("m/f; charset = utf-8 ;x", "m/f", {"charset": "utf-8"}),
        ("a/vnd.b+json", "a/vnd.b+json", {}),
    ],
)
def test_a_content_type_is_a_name_and_parameters(
    text: str, name: str, parameters: dict[str, str]
) -> None:
    media = MediaType.parse(text)
    assert media is not None
    assert (media.name, dict(media.parameters)) == (name, parameters)


@pytest.mark.parametrize("text", ["", "json", "a/", "/b", "a/b c", "a/b, c/d", "é/b", "a b/c", ";"])
def test_what_is_no_media_type_is_none(text: str) -> None:
    assert MediaType.parse(text) is None


def test_json_has_many_names() -> None:
    for text in ("application/json; charset=utf-8", "application/ld+json", "APPLICATION/JSON"):
        media = MediaType.parse(text)
        assert media is not None
        assert media.is_json


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, "image/png"),
        ("", "image/png"),
        ("*/*", "image/png"),
        ("application/json", "application/json"),
        ("application/json, */*;q=0.1", "application/json"),
        ("image/*", "image/png"),
        ("image/*;q=0.5, application/json;q=0.4", "image/png"),
        ("image/png;q=0, */*", "application/json"),
        ("text/html, */*; q=0.8", "image/png"),
        ("text/html", None),
        ("image/png;q=0", None),
        ("image/png;q=nonsense", None),
        ("image/png;q=nan", None),
        ("image/png;q=2", None),
        ("IMAGE/PNG", "image/png"),
        (",,;;,image/png;a=b;q=1", "image/png"),
    ],
)
def test_the_offer_that_an_accept_header_likes_best_is_preferred(
    accept: str | None, wanted: str | None
) -> None:
    assert preferred(accept, OFFERS) == wanted


def test_an_endless_accept_header_is_read_up_to_a_bound() -> None:
    assert preferred("a/b," * 5000 + "image/png", OFFERS) is None


@pytest.mark.parametrize(
    ("accept", "named"),
    [
        (None, False),
        ("*/*", False),
        ("image/png", True),
        ("image/*", True),
        ("image/png;q=0", False),
    ],
)
def test_a_type_is_named_by_itself_or_its_kind(accept: str | None, named: bool) -> None:
    assert names_type(accept, "image/png") is named
