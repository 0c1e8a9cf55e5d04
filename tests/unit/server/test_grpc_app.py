"""server/grpc_app.py and the calls that answer at once, in memory."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import wherry
from tests.fakes import Gate, gated
from tests.grpc_calls import Client, served, words
from wherry.core.models.config import InstanceGroup
from wherry.server.access.api_keys import GROUPS, ApiKeys, Restrictions
from wherry.server.grpc.rpc import MAX_TEXT_BYTES
from wherry.server.v2 import describe
from wherry.server.v2.common import Common
from wherry.server.v2.grpc import kserve
from wherry.server.v2.shared_memory import SharedMemory

HEALTH = "grpc.health.v1.Health"


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if text == ["bug"]:
        raise ZeroDivisionError
    if text == ["long"]:
        raise wherry.InvalidRequest("\ud800" + "x" * 10_000)
    return [t.upper() for t in text]


@wherry.model(instances=[InstanceGroup(count=2)])
def count(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.fixture
def client() -> Iterator[Client]:
    with served(shout, count) as client:
        yield client


def test_every_method_of_the_protocol_is_answered(client: Client) -> None:
    for path, method in client.app.methods.items():
        service, name = path[1:].split("/")
        rpc = client.begin(name, service=service)
        if method.gives_stream:
            client.call(rpc.leave)
            continue
        rpc.wait()
        assert rpc.code != "INTERNAL", path
        assert (rpc.code, rpc.details) != ("UNIMPLEMENTED", ""), path


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-1", True), ("x" * 128, True), ("x" * 129, False), ("a\x07b", False), ("é", False)],
)
def test_a_call_s_own_id_comes_back_in_its_trailers(client: Client, sent: str, kept: bool) -> None:
    expected = sent if kept else None
    metadata = {"x-request-id": sent}
    calls: list[tuple[str, Any]] = [
        ("ModelInfer", words("a")),
        ("ModelInfer", words("bug")),
        ("ServerLive", b""),
    ]
    for method, request in calls * 2:  # equal calls share their metadata
        rpc = client.ask(method, request, metadata=metadata)
        assert dict(rpc.trailers).get("x-request-id") == expected
    asked = client.ask(
        "ModelInfer", words("a"), metadata={**metadata, "endpoint-load-metrics-format": "text"}
    )
    assert [name for name, _ in asked.trailers] == [
        *(["x-request-id"] if kept else []),
        "endpoint-load-metrics",
    ]


def test_the_server_lives_and_is_ready(client: Client) -> None:
    assert client.ask("ServerLive").answer == {"live": True}
    assert client.ask("ServerReady").answer == {"ready": True}
    client.call(client.app.drain)
    assert client.ask("ServerReady").answer == {}  # false is protobuf's default
    assert client.ask("ServerLive").answer == {"live": True}


def test_the_server_tells_its_name_and_extensions(client: Client) -> None:
    answer = client.ask("ServerMetadata").answer
    assert (answer["name"], answer["version"]) == ("wherry", wherry.__version__)
    assert "statistics" in answer["extensions"]
    assert not {"system_shared_memory", "generate"} & {*answer["extensions"]}


@pytest.mark.parametrize(
    ("request_", "ready"),
    [
        ({"name": "shout"}, {"ready": True}),
        ({"name": "shout", "version": "1"}, {"ready": True}),
        ({"name": "shout", "version": "2"}, {}),
        ({"name": "nope"}, {}),
        ({}, {}),
    ],
)
def test_a_model_that_is_not_there_is_not_ready_which_is_no_error(
    client: Client, request_: dict[str, str], ready: dict[str, bool]
) -> None:
    assert client.ask("ModelReady", request_).answer == ready


@pytest.mark.parametrize(
    "method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer"]
)
@pytest.mark.parametrize("version", ["one", "-1", "1.0", "\u0661"])
def test_a_version_is_a_number(client: Client, method: str, version: str) -> None:
    field = "model_" if method == "ModelInfer" else ""
    rpc = client.ask(method, {f"{field}name": "shout", f"{field}version": version})
    assert rpc.error == (
        "INVALID_ARGUMENT",
        f"failed to get model version from specified version string '{version}' (details: stol),"
        " version should be an integral value > 0",
    )


def test_metadata_is_what_describe_says(client: Client) -> None:
    answer = client.ask("ModelMetadata", {"name": "count"}).answer
    said = describe.metadata(client.runtime, client.runtime.model("count"), None)
    assert answer == msgspec.to_builtins(said)
    code, text = client.ask("ModelMetadata", {"name": "nope"}).error
    assert (code, text) == ("NOT_FOUND", "Request for unknown model: 'nope' is not found")


@pytest.mark.parametrize("name", ["shout", "count"])
def test_the_config_message_has_all_that_describe_says(client: Client, name: str) -> None:
    """Beside our own settings, and defaults, which protobuf does not send."""
    answer = client.ask("ModelConfig", {"name": name}).answer["config"]
    said = describe.model_config(client.runtime.model(name))
    message = client.app.methods["/inference.GRPCInferenceService/ModelConfig"].response
    fields = {f.name for f in message.fields[0].type.fields}  # type: ignore[union-attr]
    assert set(said) - fields == {"wherry"}
    assert answer["name"] == name
    assert answer["instance_group"][0]["count"] == said["instance_group"][0]["count"]
    assert answer["optimization"]["input_pinned_memory"] == {"enable": True}
    assert ("dynamic_batching" in answer) == (name == "shout")
    assert answer["model_transaction_policy"] == ({"decoupled": True} if name == "count" else {})


def test_statistics_are_those_of_one_model_or_of_all(client: Client) -> None:
    client.ask("ModelInfer", words("a", "b"))
    (shouts,) = client.ask("ModelStatistics", {"name": "shout"}).answer["model_stats"]
    assert (shouts["inference_count"], shouts["execution_count"]) == (2, 1)
    assert shouts["inference_stats"]["success"]["count"] == 1
    assert shouts["inference_stats"]["success"]["ns"] > 0
    assert shouts["inference_stats"]["cache_hit"] == {}
    assert [batch["batch_size"] for batch in shouts["batch_stats"]] == [2]
    of_all = client.ask("ModelStatistics").answer["model_stats"]
    assert [stats["name"] for stats in of_all] == ["count", "shout"]
    assert client.ask("ModelStatistics", {"name": "nope"}).error == (
        "INVALID_ARGUMENT",
        "requested model 'nope' is not available",
    )


def test_a_request_that_is_split_counts_as_one(client: Client) -> None:
    most = client.runtime.model("shout").config.max_batch_size
    client.ask("ModelInfer", words(*["w"] * (2 * most + 1)))
    (shouts,) = client.ask("ModelStatistics", {"name": "shout"}).answer["model_stats"]
    assert (shouts["inference_count"], shouts["execution_count"]) == (2 * most + 1, 3)
    assert [shouts["inference_stats"][name]["count"] for name in ("success", "queue")] == [1, 1]


def test_a_server_without_a_repository_tells_what_runs_and_changes_nothing(client: Client) -> None:
    models = client.ask("RepositoryIndex").answer["models"]
    assert [(m["name"], m["version"], m["state"]) for m in models] == [
        ("count", "1", "READY"),
        ("shout", "1", "READY"),
    ]
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        code, text = client.ask(method, {"model_name": "shout"}).error
        assert code == "UNAVAILABLE"
        assert "not allowed" in text
        assert client.ask(method, {"repository_name": "r", "model_name": "shout"}).error == (
            "UNIMPLEMENTED",
            "'repository_name' specification is not supported",
        )
    assert client.ask("RepositoryIndex", {"repository_name": "r"}).code == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"config": {"int64_param": 1}}, "'config' must be a string that holds JSON"),
        ({"config": {}}, "'config' must be a string"),
        ({"file:1/model.py": {"bool_param": True}}, "must be a file's content"),
        ({"nope": {"string_param": "x"}}, "unknown parameter 'nope'"),
    ],
)
def test_parameters_of_a_load_are_checked(
    client: Client, parameters: dict[str, Any], problem: str
) -> None:
    request = {"model_name": "shout", "parameters": parameters}
    code, text = client.ask("RepositoryModelLoad", request).error
    assert code == "INVALID_ARGUMENT"
    assert problem in text


def test_a_server_that_takes_no_files_says_what_to_do() -> None:
    with served(shout, allow_model_upload=False) as client:
        parameters = {"file:1/model.py": {"bytes_param": b"x"}, "config": {"string_param": "{}"}}
        request = {"model_name": "new", "parameters": parameters}
        code, text = client.ask("RepositoryModelLoad", request).error
        assert code == "PERMISSION_DENIED"
        assert "--allow-model-upload" in text


def test_settings_are_told_and_changed() -> None:
    common = Common()
    with served(shout, common=common) as client:
        answer = client.ask("TraceSetting").answer["settings"]
        assert answer["trace_level"] == {"value": ["OFF"]}
        assert answer["trace_rate"] == {"value": ["1000"]}
        change = {"settings": {"trace_rate": {"value": ["7"]}, "trace_level": {}}}
        answer = client.ask("TraceSetting", {**change, "model_name": "shout"}).answer["settings"]
        assert answer["trace_rate"] == {"value": ["7"]}
        assert common.trace_settings.values("shout")["trace_rate"] == "7"
        assert common.trace_settings.values()["trace_rate"] == "1000"
        back = {"settings": {"trace_rate": {}}, "model_name": "shout"}
        assert client.ask("TraceSetting", back).answer["settings"]["trace_rate"]["value"] == [
            "1000"
        ]
        answer = client.ask("LogSettings").answer["settings"]
        assert answer["log_file"] == {"string_param": ""}
        assert answer["log_verbose_level"] == {"uint32_param": 0}
        assert answer["log_error"] == {"bool_param": True}


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        (
            "TraceSetting",
            {"model_name": "nope"},
            "INVALID_ARGUMENT",
            "Request for unknown model : nope",
        ),
        ("TraceSetting", {"settings": {"nope": {}}}, "INVALID_ARGUMENT", "unknown trace setting"),
        (
            "TraceSetting",
            {"settings": {"trace_rate": {"value": ["1", "2"]}}},
            "INVALID_ARGUMENT",
            "takes one value, not 2",
        ),
        (
            "TraceSetting",
            {"settings": {"trace_rate": {"value": ["x"]}}},
            "INVALID_ARGUMENT",
            "must be a whole number",
        ),
        (
            "LogSettings",
            {"settings": {"log_file": {"string_param": "/x"}}},
            "UNIMPLEMENTED",
            "log file location can not be updated",
        ),
        (
            "LogSettings",
            {"settings": {"log_info": {"uint32_param": 1}}},
            "INVALID_ARGUMENT",
            "log_info must be a bool",
        ),
        ("LogSettings", {"settings": {"log_info": {}}}, "INVALID_ARGUMENT", "must be a bool"),
        ("SystemSharedMemoryStatus", {"name": "r"}, "NOT_FOUND", "Unable to find system"),
        ("CudaSharedMemoryStatus", {"name": "r"}, "NOT_FOUND", "Unable to find cuda"),
        ("CudaSharedMemoryRegister", {"name": "r"}, "UNIMPLEMENTED", "no CUDA shared memory"),
        (
            "SystemSharedMemoryRegister",
            {"name": "r", "key": "/k", "byte_size": 1},
            "UNIMPLEMENTED",
            "--allow-client-shm",
        ),
    ],
)
def test_what_cannot_be_set_or_found_is_said(
    client: Client, method: str, request_: dict[str, Any], code: str, text: str
) -> None:
    error = client.ask(method, request_).error
    assert error[0] == code
    assert text in error[1]


def test_regions_are_registered_told_and_forgotten() -> None:
    key = Path(f"/dev/shm/wherry-test-{os.getpid()}-app")
    key.write_bytes(bytes(100))
    try:
        with served(shout, shared_memory=SharedMemory(allowed=True)) as client:
            region = {"name": "r", "key": key.name, "byte_size": 50, "offset": 10}
            assert client.ask("SystemSharedMemoryRegister", region).answer == {}
            assert client.ask("SystemSharedMemoryRegister", region).code == "ALREADY_EXISTS"
            for request in ({}, {"name": "r"}):
                answer = client.ask("SystemSharedMemoryStatus", request).answer
                assert answer == {"regions": {"r": region}}
            assert client.ask("SystemSharedMemoryUnregister", {"name": "nope"}).answer == {}
            assert client.ask("SystemSharedMemoryUnregister").answer == {}
            assert client.ask("SystemSharedMemoryStatus").answer == {}
            assert client.ask("CudaSharedMemoryStatus").answer == {}
            assert client.ask("CudaSharedMemoryUnregister").answer == {}
    finally:
        key.unlink()


OPEN = {"ServerLive", "ServerReady", "Check", "Watch"}

# Who may ask


def test_every_method_but_health_wants_a_key() -> None:
    with served(shout, keys=ApiKeys(["one", "two"])) as client:
        for path in client.app.methods:
            service, name = path[1:].split("/")
            rpc = client.begin(name, service=service)
            assert (rpc.code == "UNAUTHENTICATED") == (name not in OPEN), path
            client.call(rpc.leave)
        for metadata in (
            {"authorization": "Bearer two"},
            {"authorization": "bearer  one"},
            {"x-api-key": "one"},
        ):
            assert client.ask("ModelInfer", words("a"), metadata=metadata).code == "OK"
        for metadata in (
            {"authorization": "two"},
            {"authorization": "Bearer"},
            {"authorization": "Bearer on"},
            {"x-api-key": "t\u00fcwo"},
        ):
            assert client.ask("ModelInfer", words("a"), metadata=metadata).error[0] == (
                "UNAUTHENTICATED"
            )


def test_parts_may_be_restricted_as_over_http_with_tritons_prefix() -> None:
    restrictions = Restrictions(["inference,model-repository:admin=secret"], ["trace"])
    with served(shout, restrictions=restrictions) as client:
        assert client.ask("ModelInfer", words("a")).error == (
            "PERMISSION_DENIED",
            "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'",
        )
        assert client.ask("RepositoryIndex").code == "PERMISSION_DENIED"
        assert client.ask("TraceSetting").code == "PERMISSION_DENIED"
        assert client.ask("ModelMetadata", {"name": "shout"}).code == "OK"
        header = {"triton-grpc-protocol-admin": "secret"}
        assert client.ask("ModelInfer", words("a"), metadata=header).code == "OK"


def test_every_method_belongs_to_a_group(client: Client) -> None:
    handlers = {path.rpartition("/")[2]: h for path, h in client.app._handlers.items()}
    assert {handler.group for handler in handlers.values()} == set(GROUPS) - {"metrics"}
    of_health = {name for name, handler in handlers.items() if handler.group == "health"}
    assert of_health == OPEN | {"ModelReady"}
    assert {name for name, handler in handlers.items() if handler.open} == OPEN


# Errors


def test_a_request_that_is_no_message_is_refused(client: Client) -> None:
    for method in ("ModelInfer", "ModelReady", "RepositoryModelLoad"):
        code, text = client.ask(method, b"\x0a\x05ab").error
        assert code == "INVALID_ARGUMENT"
        assert "failed to parse the request message" in text


def test_a_long_error_is_cut_and_what_is_no_utf_8_replaced(client: Client) -> None:
    _, text = client.ask("ModelInfer", words("long")).error
    assert text.startswith("?xxx")
    assert len(text.encode()) == MAX_TEXT_BYTES + 3
    _, text = client.ask("ModelMetadata", {"name": "\u20ac" * 10_000}).error
    assert len(text.encode()) <= MAX_TEXT_BYTES + 3


def test_a_bug_of_ours_is_logged_and_not_shown(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(describe, "statistics", broken)
    code, text = client.ask("ModelStatistics").error
    assert code == "INTERNAL"
    assert "secret" not in text
    (record,) = [r for r in caplog.records if r.message == "internal error"]
    assert record.__dict__["request_id"] in text
    assert record.__dict__["path"].endswith("ModelStatistics")


# Health


def test_health_is_that_of_the_server() -> None:
    gate = Gate()
    with served(gated(gate)) as client:
        for service in kserve.SERVICES:
            answer = client.ask("Check", {"service": service}, service=HEALTH).answer
            assert answer == {"status": 1}
        assert client.ask("Check", {"service": "nope"}, service=HEALTH).error[0] == "NOT_FOUND"
        client.call(client.app.drain)
        assert client.ask("Check", service=HEALTH).answer == {"status": 2}


def test_who_watches_is_told_at_once_and_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kserve, "WATCH_INTERVAL", 0.001)
    with served(shout) as client:
        watching = client.begin("Watch", service=HEALTH)
        unknown = client.begin("Watch", {"service": "nope"}, service=HEALTH)
        assert watching.wait_for(1) == [{"status": 1}]
        assert unknown.wait_for(1) == [{"status": 3}]
        reasons = {"shout": "its worker died"}
        monkeypatch.setattr(client.runtime, "not_ready", lambda: reasons)
        assert watching.wait_for(2)[1] == {"status": 2}
        reasons.clear()
        assert watching.wait_for(3)[2] == {"status": 1}
        client.call(client.app.drain)
        assert watching.wait().answers[3:] == [{"status": 2}]
        assert watching.code == "OK"
        assert unknown.wait().code == "OK"


def test_who_stops_watching_is_forgotten(client: Client) -> None:
    watching = client.begin("Watch", service=HEALTH)
    watching.wait_for(1)
    assert len(client.app._entry.watches) == 1
    client.call(watching.leave)
    assert not client.app._entry.watches
    assert watching.done.done() is False


def test_every_method_has_its_row_in_the_reference(client: Client) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/grpc.md").read_text()
    table = page[page.index("| method | answer |") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| \S", table, re.M)
    assert sorted(rows) == sorted({path.rpartition("/")[2] for path in client.app.methods})
