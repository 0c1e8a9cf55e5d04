"""server/openapi/: what the document says of models, keys, groups, and many models."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import httpx
import msgspec
import numpy as np
import pytest
from openapi_spec_validator import validate

import wherry
from tests.http_exchange import Client, served
from wherry.server.access.api_keys import GROUPS, ApiKeys, Restrictions
from wherry.server.http_app import MANAGEMENT, HttpApp, PartOfApp
from wherry.server.openapi.document import MAX_MODELS
from wherry.server.openapi.routes import MAX_KEPT, OPENAPI
from wherry.server.v2.common import Common
from wherry.server.v2.shared_memory import SharedMemory
from wherry.testing import local_server

KEY = "key-of-the-test-0123456789"


@dataclasses.dataclass
class Review:
    text: str
    stars: int = 3


class Verdict(TypedDict):
    label: str
    score: float


class Crop(msgspec.Struct):
    """A part of a picture."""

    left: int
    top: int = 0


@wherry.model(max_batch_size=4, examples=[{"review": {"text": "fine"}}])
def rate(review: list[Review]) -> list[Verdict]:
    """Rates reviews.

    One by one.
    """
    return [{"label": one.text, "score": float(one.stars)} for one in review]


@wherry.model(max_batch_size=8)
def total(
    x: Annotated[np.ndarray, wherry.FP32[2, 3]], weight: list[float] | None = None
) -> Annotated[np.ndarray, wherry.FP32]:
    sums: np.ndarray = x.sum(axis=(1, 2))
    return sums


@wherry.model(description="Counts <up>.")
def count(up_to: int) -> Iterator[int]:
    yield from range(up_to)


@wherry.model
def parrot(messages: Sequence[dict[str, Any]], prompt: str = "") -> str:
    return str(messages)


@wherry.model
def crop(where: Crop, at: Review) -> str:
    return str(where)


@wherry.model
def halves(x: Annotated[np.ndarray, wherry.FP16[2]]) -> Annotated[np.ndarray, wherry.FP16[2]]:
    return x


@wherry.model(max_batch_size=8, route="/turn")
def turn(data: list[bytes], times: list[int] | None = None) -> list[bytes]:
    """Turns files round."""
    return [one[::-1] for one in data]


@wherry.model(route="/people/greet", examples=[{"who": {"text": "Ann"}}])
def greet(who: Review) -> Iterator[str]:
    yield who.text


@wherry.model(max_batch_size=8, route="/thumbnail")
def thumbnail(
    image: list[bytes],
) -> list[Annotated[bytes, wherry.ImageSpec(format="jpeg")]]:
    return image


def document_of(client: Client) -> Any:
    answer = client.get(OPENAPI)
    assert answer.status == 200
    return answer.json


@pytest.fixture(scope="module")
def told() -> Any:
    with served(rate, total, count, crop, halves) as client:
        return document_of(client)


def kept_by(app: HttpApp) -> Any:
    """The documents that an application keeps."""
    handler: Any = app._own[OPENAPI].handlers["GET"]
    return handler.__self__._made


def schema(told: Any, name: str) -> Any:
    return told["components"]["schemas"][name]


def names_in(part: Any) -> set[str]:
    """The schemas to which a part of a document refers."""
    return set(re.findall(r"#/components/schemas/([\w.-]+)", json.dumps(part)))


@pytest.mark.slow
def test_it_is_valid_with_all_that_may_be_in_it() -> None:
    common = Common(keys=ApiKeys([KEY]), shared_memory=SharedMemory(allowed=True))
    rules = Restrictions(["statistics,health:Admin=secret"])
    with served(rate, total, count, crop, parrot, common=common, restrictions=rules) as client:
        validate(client.get(OPENAPI, {"x-api-key": KEY}).json)


def test_it_is_openapi_3_1_relative_to_where_it_lies(told: Any) -> None:
    assert told["openapi"].startswith("3.1.")
    assert told["servers"] == [{"url": "."}]
    assert told["info"]["title"] == "wherry"


def test_a_model_has_its_own_paths_with_its_inputs_by_name(told: Any) -> None:
    operation = told["paths"]["/v2/models/rate/generate"]["post"]
    assert operation["summary"] == "rate: Rates reviews."
    assert "One by one." in operation["description"]
    content = operation["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/rate.Inputs"}
    assert content["examples"]["example"]["value"] == {"review": {"text": "fine"}}
    review = schema(told, "rate.Inputs")["properties"]["review"]
    assert review["anyOf"][0] == {"$ref": "#/components/schemas/rate.Review"}
    assert schema(told, "rate.Review")["required"] == ["text"]
    assert schema(told, "rate.Verdict")["properties"]["score"] == {"type": "number"}


def test_tensors_have_their_names_datatypes_and_shapes(told: Any) -> None:
    x, weight = schema(told, "total.InferRequest")["properties"]["inputs"]["items"]["oneOf"]
    assert x["properties"]["name"] == {"const": "x"}
    assert x["properties"]["datatype"] == {"const": "FP32"}
    assert x["properties"]["shape"]["prefixItems"][1:] == [{"const": 2}, {"const": 3}]
    assert weight["properties"]["datatype"] == {"const": "FP64"}
    assert schema(told, "total.Inputs")["required"] == ["x"]


def test_rows_of_fixed_shape_are_nested_lists_of_that_size(told: Any) -> None:
    row = schema(told, "total.Inputs")["properties"]["x"]["anyOf"][0]
    assert (row["minItems"], row["items"]["maxItems"]) == (2, 3)


def test_a_stream_is_events(told: Any) -> None:
    assert "/v2/models/count/generate" not in told["paths"]
    operation = told["paths"]["/v2/models/count/generate_stream"]["post"]
    assert operation["description"] == "Counts <up>."
    content = operation["responses"]["200"]["content"]["text/event-stream"]
    data = content["schema"]["properties"]["data"]
    assert data["contentSchema"] == {"$ref": "#/components/schemas/count.Outputs"}


def test_a_natural_route_takes_and_gives_the_models_own_types() -> None:
    with served(turn, greet) as client:
        told = document_of(client)
    operation = told["paths"]["/turn"]["post"]
    content = operation["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data", "application/octet-stream"}
    row = content["application/json"]["schema"]["anyOf"][0]
    assert row == {"$ref": "#/components/schemas/turn.Row"}
    assert schema(told, "turn.Row")["required"] == ["data"]
    assert set(operation["responses"]["200"]["content"]) == {
        "application/json",
        "application/octet-stream",
    }
    assert {"406", "415"} < set(operation["responses"])
    whole = told["paths"]["/people/greet"]["post"]
    content = whole["requestBody"]["content"]["application/json"]
    assert content["schema"]["anyOf"][0] == {"$ref": "#/components/schemas/greet.Review"}
    assert content["examples"]["example"]["value"] == {"text": "Ann"}
    assert "application/x-ndjson" in whole["responses"]["200"]["content"]


def test_a_plain_default_is_shown() -> None:
    @wherry.model(max_batch_size=8, route="/cut")
    def cut(text: list[str], k: list[int] = 1) -> list[str]:  # type: ignore[assignment]
        return text

    with served(cut) as client:
        schemas = client.get("/openapi.json").json["components"]["schemas"]
    assert schemas["cut.Row"]["properties"]["k"]["default"] == 1
    assert schemas["cut.Inputs"]["properties"]["k"]["default"] == 1


def test_a_file_has_the_media_types_that_it_may_have() -> None:
    with served(thumbnail) as client:
        told = document_of(client)
    for path in ("/thumbnail", "/v2/models/thumbnail/generate"):
        operation = told["paths"][path]["post"]
        assert "image/jpeg" in operation["responses"]["200"]["content"]


def test_types_of_one_name_in_two_models_stay_apart(told: Any) -> None:
    assert schema(told, "crop.Review") == {**schema(told, "rate.Review"), "title": "crop.Review"}
    assert schema(told, "crop.Crop")["description"] == "A part of a picture."


def test_what_json_cannot_carry_is_described_as_tensors_only(told: Any) -> None:
    assert "/v2/models/halves/generate" not in told["paths"]
    assert "/v2/models/halves/infer" in told["paths"]


def test_operation_ids_are_names_that_differ(told: Any) -> None:
    ids = [
        operation["operationId"] for path in told["paths"].values() for operation in path.values()
    ]
    assert len({one.lower().replace("_", "") for one in ids}) == len(ids)
    assert all(one.isidentifier() for one in ids)


def test_openai_is_there_if_a_model_answers_it(told: Any) -> None:
    assert not any(path.startswith("/v1/") for path in told["paths"])
    with served(parrot) as client:
        paths = document_of(client)["paths"]
    assert {"/v1/models", "/v1/chat/completions", "/v1/responses", "/v1/completions"} <= set(paths)
    assert "/v1/embeddings" not in paths


def test_what_every_answer_has_is_required_in_it() -> None:
    with served(parrot) as client:
        schemas = document_of(client)["components"]["schemas"]
    always = {"id", "object", "created", "model", "choices", "usage"}
    assert always <= {*schemas["ChatCompletion"]["required"]}
    assert {"index", "message", "finish_reason"} <= {*schemas["ChatChoice"]["required"]}
    assert "type" in schemas["OutputMessage"]["required"]


def test_members_that_openais_routes_ignore_are_not_forbidden() -> None:
    with served(parrot) as client:
        document = document_of(client)
    for path in ("chat/completions", "completions", "responses"):
        seen: set[str] = set()
        left = names_in(document["paths"][f"/v1/{path}"]["post"]["requestBody"])
        while left:
            seen |= left
            assert not [n for n in left if schema(document, n).get("additionalProperties") is False]
            left = set().union(*(names_in(schema(document, name)) for name in left)) - seen
        assert len(seen) > 3, path


def test_without_keys_nothing_is_said_of_them(told: Any) -> None:
    assert told["components"]["securitySchemes"] == {}
    assert "401" not in told["paths"]["/v2"]["get"]["responses"]


def test_with_keys_every_path_but_health_wants_one() -> None:
    with served(count, keys=ApiKeys([KEY])) as client:
        answer = client.get(OPENAPI, {"x-api-key": KEY})
        assert client.get(OPENAPI).status == 401
    told = answer.json
    assert set(told["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path, methods in told["paths"].items():
        for operation in methods.values():
            is_open = path in ("/", "/docs") or (
                operation["tags"] == ["health"] and "{" not in path
            )
            assert operation.get("security") == (
                None if is_open else [{"bearer": []}, {"apiKey": []}]
            )
            assert ("401" in operation["responses"]) is not is_open


@pytest.mark.slow
def test_a_group_that_is_off_is_left_out() -> None:
    common = Common(shared_memory=SharedMemory(allowed=True))
    with served(count, common=common) as client:
        everything = document_of(client)
        groups = {path: group_of(client, path) for path in everything["paths"]}
    assert set(groups.values()) == set(GROUPS)
    for group in set(GROUPS) - {"metadata"}:
        with served(count, common=common, restrictions=Restrictions(off=[group])) as client:
            told = document_of(client)
        assert set(told["paths"]) == {path for path in groups if groups[path] != group}


def group_of(client: Client, path: str) -> str:
    route = client.app.described().get(path)
    return "inference" if route is None else route.group  # a loaded model's


def test_a_restricted_group_wants_its_header() -> None:
    with served(count, restrictions=Restrictions(["statistics,logging:Admin=secret"])) as client:
        told = document_of(client)
    scheme = told["components"]["securitySchemes"]["header.admin"]
    assert scheme == {"type": "apiKey", "in": "header", "name": "Admin"}
    assert told["paths"]["/v2/logging"]["post"]["security"] == [{"header.admin": []}]
    assert "security" not in told["paths"]["/v2"]["get"]
    assert "secret" not in json.dumps(told)


def test_shared_memory_is_there_if_it_is_allowed(told: Any) -> None:
    path = "/v2/systemsharedmemory/region/{region}/register"
    assert path not in told["paths"]
    with served(count, shared_memory=SharedMemory(allowed=True)) as client:
        assert path in document_of(client)["paths"]


def test_models_that_come_and_go_change_it() -> None:
    with served(count) as client:
        assert "/v2/models/rate/generate" not in document_of(client)["paths"]
        client.runtime.load(rate)
        assert "/v2/models/rate/generate" in document_of(client)["paths"]
        client.runtime.unload("rate")
        assert "/v2/models/rate/generate" not in document_of(client)["paths"]


def test_it_is_made_once_for_the_same_models() -> None:
    with served(count) as client:
        document_of(client)
        made = kept_by(client.app)[frozenset()]
        client.get("/v2/models")
        assert client.get("/v2/models/none").status == 404
        document_of(client)
        assert kept_by(client.app)[frozenset()] is made


def test_a_part_of_the_application_tells_of_its_own_routes() -> None:
    with served(count) as client:
        everything = set(document_of(client)["paths"])
        groups = {path: group_of(client, path) for path in everything}
        public = PartOfApp(client.app, set(GROUPS) - MANAGEMENT)
        client.app, whole = public, client.app  # type: ignore[assignment]
        shown = set(document_of(client)["paths"])
        client.app = whole
        assert everything - shown == {path for path in groups if groups[path] in MANAGEMENT}
        assert set(document_of(client)["paths"]) == everything


@pytest.mark.slow
def test_what_is_kept_of_documents_is_bounded() -> None:
    with local_server(count) as server:
        for group in GROUPS:
            answer = httpx.get(f"{server.url}{OPENAPI}", params={"without": group})
            assert answer.status_code == 200
        kept = kept_by(server._applications.http)
        assert 0 < len(kept) <= MAX_KEPT
        wrong = httpx.get(f"{server.url}{OPENAPI}?without=no")
        assert wrong.status_code == 400
        assert "without: some of health" in wrong.json()["error"]


@pytest.mark.slow
def test_many_models_are_folded_and_one_may_be_asked_for() -> None:
    def model(number: int) -> wherry.Model:
        @wherry.model(name=f"m{number:03}")
        def one(text: str) -> str:
            return text

        return one

    models = [model(number) for number in range(MAX_MODELS + 5)]
    with local_server(*models, isolation="thread") as server:
        told = httpx.get(f"{server.url}{OPENAPI}").json()
        own = [path for path in told["paths"] if re.match(r"/v2/models/m\d+/generate", path)]
        assert len(own) == MAX_MODELS
        assert f"{len(models)} models are loaded" in told["info"]["description"]
        last = models[-1].name
        told = httpx.get(f"{server.url}{OPENAPI}?model={last}&model=m000").json()
        own = [path for path in told["paths"] if re.match(r"/v2/models/m\d+/generate", path)]
        assert own == ["/v2/models/m000/generate", f"/v2/models/{last}/generate"]
        assert httpx.get(f"{server.url}{OPENAPI}?model=none").status_code == 404
        many = "&".join(["model=m000"] * 17)
        assert httpx.get(f"{server.url}{OPENAPI}?{many}").status_code == 400


def parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inside:
        yield from parts_of(one)


def test_generators_of_clients_find_what_they_ask_for(told: Any) -> None:
    parts = list(parts_of({"paths": told["paths"], "components": told["components"]}))
    assert [one for one in parts if one.get("type") == "array" and "items" not in one] == []
    assert [one for one in parts if "enum" in one and "type" not in one] == [
        {"enum": ["", None], "description": "Only the server's start decides."},
        {"enum": ["triton", None], "description": "Only the server's start decides."},
    ]
    titles = [one["title"] for one in told["components"]["schemas"].values() if "title" in one]
    assert len(set(titles)) == len(titles)
