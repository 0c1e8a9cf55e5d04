"""server/http_app.py: the group of each path; a restriction must miss none of them."""

import pytest

import wherry
from tests.http_exchange import served
from wherry.server.access.api_keys import GROUPS, ApiKeys, Restrictions
from wherry.server.http.exchange import RequestHead


@wherry.model
def quiet(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/", "metadata"),
        ("/v2", "metadata"),
        ("/v2/models", "metadata"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/infer", "inference"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/1/infer", "inference"),
        ("/v2/models/versions/infer", "inference"),
        ("/v2/models/m/generate", "inference"),
        ("/v2/models/m/versions/1/generate_stream", "inference"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/versions/2/stats", "statistics"),
        ("/v2/models/m/batching", "statistics"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/livez", "health"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/cudasharedmemory/region/r/register", "shared-memory"),
        ("/metrics", "metrics"),
        ("/v1/models", "metadata"),
        ("/v1/models/m", "metadata"),
        ("/v1/chat/completions", "inference"),
    ],
)
def test_each_path_has_its_group(path: str, group: str) -> None:
    assert group in GROUPS
    with served(quiet) as client:
        route = client.app.route(RequestHead("GET", path))
        assert route is not None
        assert route.group == group


def test_with_every_group_off_no_route_answers() -> None:
    with served(quiet, restrictions=Restrictions(off=GROUPS)) as client:
        for path, route in client.app._routes.items():
            assert route.group in GROUPS
            for method in route.handlers:
                answer = client.ask(method, path)
                assert answer.status == 403, path
                assert b"switched off" in answer.body  # in the form of the path's protocol


def test_a_restricted_group_answers_whoever_has_the_header() -> None:
    restrictions = Restrictions(["inference,logging:admin-key=secret"])
    path, body = "/v2/models/quiet/generate", {"text": "a"}
    with served(quiet, restrictions=restrictions) as client:
        refused = client.post(path, body)
        assert refused.status == 403
        assert refused.error == "This API is restricted, expecting header 'admin-key'"
        assert client.post(path, body, {"admin-key": "wrong"}).status == 403
        assert client.post(path, body, {"admin-key": "secret"}).json["output"] == "a"
        assert client.get("/v2/logging").status == 403
        assert client.get("/v2/models/quiet").status == 200


def test_keys_are_asked_for_before_a_restriction_says_anything() -> None:
    with served(quiet, keys=ApiKeys(["k"]), restrictions=Restrictions(off=["logging"])) as client:
        assert client.get("/v2/logging").status == 401
        assert client.get("/v2/logging", {"x-api-key": "k"}).status == 403
