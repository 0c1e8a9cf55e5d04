from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import TIMEOUT
from tests.http_exchange import Client, app_loop, served
from tests.repositories import Gate, Plus, make, save, save_ensemble
from wherry import Runtime
from wherry.server.http_app import HttpApp
from wherry.server.v2.common import Common
from wherry.triton.loading.control import ModelControl
from wherry.triton.repository.triton_config import TritonConfig


@contextmanager
def serving(repository: Path, *, common: Common | None = None, **options: Any) -> Iterator[Client]:
    options.setdefault("mode", "explicit")
    with Runtime() as runtime, app_loop() as loop:
        control = ModelControl(runtime, [repository], make_model=make, **options)
        try:
            control.start()
            yield Client(HttpApp(runtime, control=control, common=common), runtime, loop)
        finally:
            control.freeze()
            runtime.close()
            control.close()


def environment(path: str) -> dict[str, Any]:
    """A load that has the model run by another program."""
    patch = {"parameters": {"EXECUTION_ENV_PATH": {"string_value": path}}}
    return {"parameters": {"config_patch": json.dumps(patch)}}


def infer(client: Client, name: str, x: int) -> Any:
    tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [x]}
    answer = client.post(f"/v2/models/{name}/infer", {"inputs": [tensor]})
    return answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.error


def test_the_index_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b", "broken")
    save(tmp_path, "c")

    with serving(tmp_path) as client:
        client.post("/v2/repository/models/a/load")
        client.post("/v2/repository/models/b/load")
        for body in (b"", {}, {"ready": False}):
            a, b, c = client.post("/v2/repository/index", body).json
            assert a == {"name": "a", "version": "1", "state": "READY"}
            assert (b.pop("reason") != "") is True
            assert b == {"name": "b", "version": "1", "state": "UNAVAILABLE"}
            assert c == {"name": "c"}
        assert client.post("/v2/repository/index", {"ready": True}).json == [a]


def test_a_model_is_loaded_and_unloaded(tmp_path: Path) -> None:
    save(tmp_path, "a", 5)

    with serving(tmp_path) as client:
        assert infer(client, "a", 1) == "Request for unknown model: 'a' is not found"
        loaded = client.post("/v2/repository/models/a/load")
        assert (loaded.status, loaded.body, loaded.content_type) == (200, b"", "application/json")
        assert infer(client, "a", 1) == 6
        assert client.get("/v2/models/a/ready").status == 200

        unloaded = client.post("/v2/repository/models/a/unload")
        assert (unloaded.status, unloaded.body) == (200, b"")
        assert infer(client, "a", 1) == "Request for unknown model: 'a' has no available versions"
        assert client.get("/v2/models/a/ready").status == 404
        assert client.post("/v2/repository/models/unknown/unload").status == 200


def test_a_load_does_not_hold_up_other_requests(tmp_path: Path) -> None:
    gate = 'name: "w" inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }'
    save(tmp_path, "a")
    config = (tmp_path / "a" / "config.pbtxt").read_text().replace("fake", "gate")
    save(tmp_path, "slow", config=f"{config} model_warmup {{ {gate} }}")

    with serving(tmp_path, load=["a"]) as client:
        load = client.begin("POST", "/v2/repository/models/slow/load")
        Gate.started.acquire()
        assert infer(client, "a", 1) == 2
        index = client.post("/v2/repository/index").json
        assert {"name": "slow", "version": "1", "state": "LOADING"} in index
        assert client.get("/v2/models/slow/ready").status == 503
        assert not load.answered.done()
        Gate.may_finish.release()
        load.answered.result(TIMEOUT)
        assert load.status == 200


def test_a_config_a_patch_and_files_come_with_the_request(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    tensor = {"data_type": "TYPE_INT32", "dims": ["1"]}
    config = {
        "backend": "fake",
        "max_batch_size": "4",
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
    }

    with serving(tmp_path) as client:

        def load(**parameters: str) -> int:
            body = {"parameters": {key.replace("__", ":", 1): v for key, v in parameters.items()}}
            return client.post("/v2/repository/models/a/load", body).status

        def batch_size() -> Any:
            return client.get("/v2/models/a/config").json["max_batch_size"]

        assert load(config=json.dumps(config)) == 200
        assert batch_size() == 4
        assert load(config_patch='{"max_batch_size": 2}') == 200
        assert batch_size() == 2
        file = base64.b64encode(b"40").decode()
        assert load(config=json.dumps(config), **{"file__1/number": file}) == 200
        assert infer(client, "a", 2) == 42


def test_a_server_that_takes_no_files_says_what_to_do(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)

    with serving(tmp_path, load=["a"], common=Common(allow_model_upload=False)) as client:
        body = {"parameters": {"config": "{}", "file:1/number": "eA=="}}
        answer = client.post("/v2/repository/models/a/load", body)
        assert answer.status == 403
        assert "--allow-model-upload" in answer.error
        assert infer(client, "a", 1) == 2
        body = {"parameters": {"config_patch": '{"max_batch_size": 2}'}}
        assert client.post("/v2/repository/models/a/load", body).status == 200


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"{", 400, "JSON"),
        ([], 400, "object"),
        ({"parameters": []}, 400, "parameters must be an object"),
        ({"parameters": {"config": {}}}, 400, "parameter 'config' must be a string"),
        ({"parameters": {"config": "{"}}, 400, "config: it is not JSON"),
        ({"parameters": {"config": '{"max_batch_sise": 1}'}}, 400, "did you mean"),
        ({"parameters": {"konfig": "{}"}}, 400, "unknown parameter 'konfig'"),
        ({"parameters": {"file:1/x": "eA=="}}, 400, "files need a config"),
        ({"parameters": {"config": "{}", "file:1/x": "?"}}, 400, "content in base64"),
        ({"parameters": {"config": "{}", "file:1/x": 5}}, 400, "content in base64"),
        ({"parameters": {"config": "{}", "file:../x": "eA=="}}, 400, "not a file of its folder"),
        (rb'{"parameters": {"config": "{}", "file:1/\n": "eA=="}}', 400, "not a file of its"),
        (rb'{"parameters": {"config": "{}", "file:1/\ud800": "eA=="}}', 400, "surrogate"),
        (environment("/tmp"), 400, "own config.pbtxt"),
        (environment("$$TRITON_MODEL_DIRECTORY/../env"), 400, "own config.pbtxt"),
    ],
)
def test_a_bad_load_request_is_a_400_with_the_reason(
    tmp_path: Path, body: Any, status: int, why: str
) -> None:
    save(tmp_path, "a", 1)

    with serving(tmp_path, load=["a"]) as client:
        answer = client.post("/v2/repository/models/a/load", body)

        assert answer.status == status
        assert why in answer.error
        assert infer(client, "a", 1) == 2


def test_what_cannot_be_loaded_is_told_with_the_reason(tmp_path: Path) -> None:
    save(tmp_path, "a", config="max_batch_sise: 4")

    with serving(tmp_path) as client:
        unknown = client.post("/v2/repository/models/missing/load")
        assert unknown.status == 404
        assert "failed to load 'missing', failed to poll from model repo" in unknown.error
        broken = client.post("/v2/repository/models/a/load")
        assert broken.status == 400
        assert "a/config.pbtxt:1: max_batch_sise: unknown field" in broken.error


def test_an_ensemble_takes_its_members_with_it(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save_ensemble(tmp_path, "e", "a")

    with serving(tmp_path) as client:
        client.post("/v2/repository/models/e/load")
        assert len(client.post("/v2/repository/index", {"ready": True}).json) == 2
        bad = client.post(
            "/v2/repository/models/e/unload", {"parameters": {"unload_dependents": "yes"}}
        )
        assert bad.status == 400
        body = {"parameters": {"unload_dependents": True}}
        assert client.post("/v2/repository/models/e/unload", body).status == 200
        assert client.post("/v2/repository/index", {"ready": True}).json == []


def test_where_nothing_may_change_it_is_refused(tmp_path: Path) -> None:
    model = Plus(str(tmp_path / "a"), "1", TritonConfig(name="a"))
    save(tmp_path, "a")

    with served(model) as client:
        for action in ("load", "unload"):
            answer = client.post(f"/v2/repository/models/a/{action}")
            assert answer.status == 503
            assert "explicit model load / unload is not allowed" in answer.error
        assert client.post("/v2/repository/index").json == [
            {"name": "a", "version": "1", "state": "READY"}
        ]


def test_other_paths_and_methods(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        assert client.get("/v2/repository/index").status == 405
        assert client.post("/v2/repository").status == 404
        assert client.post("/v2/repository/models/a/reload").status == 404
        assert client.post("/v2/repository/models//load").status == 404
        for path in ("/index", "/models/a/load", "mine/models//load", "mine/models//unload"):
            assert client.post(f"/v2/repository/{path}").status == 404
        assert client.post("/v2/repository/mine/index").status == 200  # as Triton: of all
        for path in ("mine/models/a/load", "mine/models/a/unload"):
            answer = client.post(f"/v2/repository/{path}")
            assert answer.status == 501
            assert answer.error == "'repository_name' specification is not supported"
        assert client.post("/v2/repository/index", {"ready": 1}).status == 400


def test_the_server_is_ready_when_every_model_is(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b", "broken")

    with serving(tmp_path, mode="none", exit_on_error=False) as client:
        answer = client.get("/v2/health/ready")
        assert answer.status == 503
        assert "model 'b': load failed" in answer.error
    with serving(tmp_path, mode="none", exit_on_error=False, strict_readiness=False) as client:
        assert client.get("/v2/health/ready").status == 200


def test_metadata_and_configuration_are_those_of_the_file(tmp_path: Path) -> None:
    save(tmp_path, "a", version=3)

    with serving(tmp_path, load=["a"]) as client:
        assert client.get("/v2/models/a").json == {
            "name": "a",
            "versions": ["3"],
            "platform": "fake",
            "inputs": [{"name": "X", "datatype": "INT32", "shape": [-1, 1]}],
            "outputs": [{"name": "Y", "datatype": "INT32", "shape": [-1, 1]}],
        }
        config = client.get("/v2/models/a/config").json
        assert config["backend"] == "fake"
        assert config["version_policy"] == {"latest": {"num_versions": 1}}
        assert config["dynamic_batching"]["preferred_batch_size"] == [8]
        assert config["instance_group"][0]["name"] == "a"
        assert "sequence_batching" not in config
        extensions = client.get("/v2").json["extensions"]
        assert {"model_repository", "model_repository(unload_dependents)"} <= set(extensions)
