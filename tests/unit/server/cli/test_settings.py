"""Which setting wins, and what is said of a wrong one."""

from pathlib import Path
from typing import Any

import pytest

from wherry.core.models.config import size_of
from wherry.core.values.errors import ConfigError
from wherry.server.access.api_keys import keys_of
from wherry.server.cli.settings import Settings, read_settings
from wherry.server.options import OPTIONS, options_of


def settings(
    folder: Path, flags: dict[str, Any] | None = None, env: dict[str, str] | None = None
) -> Settings:
    return read_settings(flags or {}, env or {}, folder=folder)


def test_a_flag_wins_over_its_variable_that_over_the_file_that_over_the_default(
    tmp_path: Path,
) -> None:
    (tmp_path / "wherry.toml").write_text(
        "[server]\nport = 1\nhost = 'file'\nlog_level = 'debug'\ndrain_timeout = 3\n"
    )
    merged = settings(
        tmp_path,
        {"port": "4", "host": None},
        {"WHERRY_PORT": "2", "WHERRY_HOST": "env", "WHERRY_UNKNOWN": "x"},
    )
    given = merged.options
    assert (given.listen.port, merged.origins["port"]) == (4, "--port")
    assert (given.listen.host, merged.origins["host"]) == ("env", "WHERRY_HOST")
    assert given.command_line.log_level == "debug"
    assert merged.origins["log_level"].endswith("wherry.toml [server]")
    assert given.life.drain_timeout == 3.0
    assert given.capacity.max_queue_bytes == 0
    assert "max_queue_bytes" not in merged.origins


def test_every_setting_can_be_said_in_each_of_the_three_ways(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "host": "h", "port": 1, "http": True, "uds": "u", "api_key": ["k"], "api_key_file": "f",
        "ssl_certfile": "c", "ssl_keyfile": "k", "ssl_client_ca": "a", "isolation": "thread",
        "inline": True, "instances": 2, "request_timeout": 1.5, "max_in_flight": 3,
        "max_body_size": 1024, "max_connections": 5, "idle_timeout": 6.0, "drain_timeout": 7.0,
        "engine": "vllm", "reload": True, "reload_path": ["labels"],
        "log_level": "error", "log_off": ["info"], "log_format": "json", "log_file": "g", "id": "i",
        "access_log": True, "recent_requests": True,
        "ready_fd": 9, "stop_fd": 9,
        "strict_fields": True, "triton_errors": True,
        "grpc_port": 10, "model_repository": ["m"], "model_control_mode": "poll",
        "load_model": ["l"], "repository_poll_secs": 11.0, "model_load_thread_count": 12,
        "model_load_retry_count": 13, "strict_readiness": True, "exit_on_error": True,
        "disable_auto_complete_config": True, "model_config_name": "n",
        "backend_directory": "b",
        "default_max_batch_size": 25,
        "served_model_name": ["org/model"], "cache_size": 14, "cache_config": ["redis,host=h"],
        "allow_client_shm": True, "allow_model_upload": True,
            "http_restricted_api": ["trace:k=v"],
        "disabled_api": ["trace"], "rate_limit_resource": ["r:1"],
        "management_port": 15, "metrics_port": 16, "agent_port": 17,
        "grpc_host": "g", "metrics_host": "m",
        "http_header_forward_pattern": "x-.*",
        "grpc_header_forward_pattern": "y-.*",
        "metrics_config": ["counter_latencies=false"], "metrics_compat": "triton",
        "load_report": "bin", "drain_notice": 5.0,
        "grpc_compression": "gzip", "trace_config": ["rate=5"],
        "rate_limit": "execution_count", "device_memory": ["cpu=1GiB"],
        "grpc_use_ssl": True, "grpc_use_ssl_mutual": True, "grpc_server_cert": "s",
        "grpc_server_key": "t", "grpc_root_cert": "r",
        "grpc_restricted_protocol": ["logging:k=v"],
        "max_queue_wait": 17.0, "max_queue_bytes": 18,
        "max_unsent_bytes": 17, "max_connection_unsent_bytes": 18,
        "max_received_bytes": 19, "max_connection_received_bytes": 20,
        "max_kept_responses": 21,
        "allowed_host": ["models.example.com"], "cors_origin": ["https://app.example.com"],
        "input_url": ["http://images.internal:9000"],
        "reuse_port": True, "fd": 21, "grpc_fd": 22, "fronts": 2,
    }  # fmt: skip
    assert values.keys() == OPTIONS.keys()
    lists = {k: v for k, v in values.items() if OPTIONS[k].separator}
    expected = options_of(values | {k: tuple(v) for k, v in lists.items()})
    texts = {k: "true" if v is True else str(v) for k, v in values.items()}
    texts |= {k: v[0] for k, v in lists.items()}

    assert settings(tmp_path, {**texts, **lists}).options == expected
    assert (
        settings(tmp_path, env={f"WHERRY_{k.upper()}": v for k, v in texts.items()}).options
        == expected
    )
    lines = [f"{k} = {str(v).lower() if v is True else repr(v)}" for k, v in values.items()]
    (tmp_path / "wherry.toml").write_text("[server]\n" + "\n".join(lines))
    assert settings(tmp_path).options == expected


def test_tool_wherry_of_pyproject_is_read_where_there_is_no_wherry_toml(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.wherry.server]\nport = 7\n[tool.other]\nx = 1\n"
    )
    assert settings(tmp_path).options.listen.port == 7
    (tmp_path / "wherry.toml").write_text("[server]\nport = 8\n")
    assert settings(tmp_path).options.listen.port == 8
    other = tmp_path / "other.toml"
    other.write_text("[server]\nport = 9\n")
    assert settings(tmp_path, env={"WHERRY_CONFIG": str(other)}).options.listen.port == 9


def test_a_pyproject_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings(tmp_path).file is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[server]\nprot = 1",
            r"wherry.toml \[server\]: unknown key 'prot'; did you mean 'port'\?",
        ),
        ("[sever]\nport = 1", "unknown key 'sever'; did you mean 'server'"),
        ("[server]\nport = 'abc'", r"\[server\]: port: 'abc': expected int, got str"),
        ("[server]\nport = 70000", "at least 0 and at most 65535"),
        ("[server]\nlog_format = 'xml'", "expected one of human, iso8601, json"),
        ("server = 3", "server must be a table"),
        (
            "[models.m]\nmax_batchsize = 3",
            r"\[models.m\]: unknown key .*did you mean 'max_batch_size'",
        ),
        ("[models]\nm = 3", "m must be a table"),
        ("[server", "is not valid TOML"),
        ("[server]\nmax_body_size = '1XB'", "is not a size"),
        ("[server]\nssl_keyfile = 'k'", "need ssl_certfile"),
        ("[server]\ngrpc_use_ssl = true", "grpc_use_ssl needs grpc_server_cert"),
        (
            "[server]\ngrpc_use_ssl_mutual = true\ngrpc_server_cert = 'c'",
            "grpc_use_ssl_mutual needs grpc_root_cert",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "wherry.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path)


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        ({"port": "x"}, {}, "--port: 'x': expected int"),
        ({}, {"WHERRY_INLINE": "maybe"}, "WHERRY_INLINE: 'maybe'"),
        ({"instances": "0"}, {}, "--instances: '0' must be at least 1"),
        ({"config": "/nowhere.toml"}, {}, "/nowhere.toml"),
    ],
)
def test_a_mistake_in_a_flag_or_variable_is_named(
    tmp_path: Path, flags: dict[str, Any], env: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, flags, env)


@pytest.mark.parametrize("key", [key for key in OPTIONS if key.endswith("_port") or key == "port"])
def test_what_kubernetes_puts_into_the_variable_of_a_port_is_not_meant_for_us(
    tmp_path: Path, key: str
) -> None:
    env = {OPTIONS[key].variable: "tcp://10.0.0.1:80"}
    assert settings(tmp_path, env=env).options.value(key) == OPTIONS[key].default


@pytest.mark.parametrize(
    ("text", "size"),
    [("10", 10), ("64MiB", 64 * 2**20), ("64M", 64 * 2**20), ("1 GB", 10**9), ("1.5k", 1536)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


def test_the_operator_wins_over_the_models_own_code_and_a_flag_over_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "wherry.toml").write_text(
        "[server]\ninstances = 2\nrequest_timeout = 5\n"
        "[models.a]\ninstances = 3\nmax_batch_size = 4\n"
    )
    merged = settings(tmp_path, {"isolation": "thread"}, {"WHERRY_REQUEST_TIMEOUT": "6"})
    said, origins = merged.of_model("a")
    assert said == {
        "instances": 3, "max_batch_size": 4, "isolation": "thread", "request_timeout": 6.0
    }  # fmt: skip
    assert origins["instances"].endswith("[models.a]")
    assert origins["request_timeout"] == "WHERRY_REQUEST_TIMEOUT"
    assert merged.of_model("b")[0]["instances"] == 2
    assert merged.unused_models(["aa", "b"]) == {"a": "aa"}


def test_what_may_be_repeated_is_separated_in_its_variable(tmp_path: Path) -> None:
    variables = {
        "WHERRY_API_KEY": "a,b",
        "WHERRY_HTTP_RESTRICTED_API": "trace,logging:k=v;inference:k=w,x",
        "WHERRY_DISABLED_API": "metrics,statistics",
    }
    access = settings(tmp_path, env=variables).options.access
    assert access.api_keys == ("a", "b")
    assert access.restricted_apis == ("trace,logging:k=v", "inference:k=w,x")
    assert access.disabled_apis == ("metrics", "statistics")


def test_the_names_of_the_only_model_win_over_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "wherry.toml").write_text("[models.m]\nserved_names = 'a,b'\n")
    assert settings(tmp_path).of_model("m")[0]["served_names"] == "a,b"
    merged = settings(tmp_path, flags={"served_model_name": ["org/m", "gpt-4o"]})
    said, origins = merged.of_model("m")
    assert tuple(said["served_names"]) == ("org/m", "gpt-4o")
    assert origins["served_names"] == "--served-model-name"


def test_inline_is_a_thread_whatever_else_was_said(tmp_path: Path) -> None:
    merged = settings(tmp_path, {"inline": True, "isolation": "process"})
    assert merged.of_model("any")[0]["isolation"] == "thread"


def test_keys_come_from_the_file_and_the_flags_and_an_empty_file_opens_no_door(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    a, b, c = (16 * letter for letter in "abc")
    keys.write_text(f"# ops team\n{b}\n\nours: {c}\n")
    merged = settings(tmp_path, {"api_key": [a], "api_key_file": str(keys)})
    assert merged.access().api_keys == (a,)
    assert keys_of(keys) == [b, f"ours: {c}"]
    for text in ("", "\n", "\ufeff\n", "# ops team\n", "  # a\r\n\t\r\n"):
        keys.write_text(text)
        with pytest.raises(ConfigError, match="holds no key"):
            keys_of(keys)


@pytest.mark.parametrize("make", ["nothing", "folder", "bytes"])
def test_a_key_file_that_cannot_be_read_opens_no_door(make: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    if make == "folder":
        keys.mkdir()
    elif make == "bytes":
        keys.write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="api_key_file"):
        keys_of(keys)


@pytest.mark.parametrize(
    ("flags", "variables", "where"),
    [
        ({"api_key": ["short-secret"]}, {}, "--api-key"),
        ({}, {"WHERRY_API_KEY": f"{20 * 'a'},short-secret"}, "WHERRY_API_KEY .key 2"),
        ({"api_key": ["two short-secret words"]}, {}, "--api-key"),
    ],
)
def test_a_key_that_can_be_guessed_is_refused_and_not_shown(
    flags: dict[str, Any], variables: dict[str, str], where: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=where) as refused:
        settings(tmp_path, flags, variables).access()
    assert "secret" not in str(refused.value).partition(" -c ")[0]


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_file_that_every_user_can_read_is_warned_of(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(20 * "k")
    keys.chmod(mode)
    keys_of(keys)
    assert ("every user" in caplog.text) is warned
    assert 20 * "k" not in caplog.text


def test_a_file_may_be_json_as_a_program_writes_it(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text(
        '{"server": {"port": 0}, "models": {"m": {"instances": 2}}}'
    )
    settings = read_settings({"config": str(tmp_path / "owner.json")}, {})
    assert settings.options.listen.port == 0
    assert settings.of_model("m")[0] == {"instances": 2}
    (tmp_path / "owner.json").write_text("[server]")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_settings({"config": str(tmp_path / "owner.json")}, {})


def test_the_colons_of_a_url_separate_no_repositories(tmp_path: Path) -> None:
    said = "/a:s3://bucket/m:s3://host:9000/b/m:s3://https://host:443/b:/c"
    found = settings(tmp_path, env={"WHERRY_MODEL_REPOSITORY": said}).options.repositories
    assert found.model_repositories == (
        "/a",
        "s3://bucket/m",
        "s3://host:9000/b/m",
        "s3://https://host:443/b",
        "/c",
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["r:2"], {"r": 2}),
        (["r:2:0", "r:5:1", "q:1"], {"r": 5, "q": 1}),
        (["r:5", "r:2"], {"r": 2}),
    ],
)
def test_resources_may_name_devices(
    tmp_path: Path, said: list[str], expected: dict[str, int]
) -> None:
    assert settings(tmp_path, {"rate_limit_resource": said}).resources() == expected


@pytest.mark.parametrize("said", ["r", "r:0", "r:x", ":1", "r:1:x", "r:1:2:3"])
def test_a_resource_without_a_count_is_refused(tmp_path: Path, said: str) -> None:
    with pytest.raises(ConfigError, match=f"rate-limit-resource: '{said}' is not NAME:COUNT"):
        settings(tmp_path, {"rate_limit_resource": [said]}).resources()
