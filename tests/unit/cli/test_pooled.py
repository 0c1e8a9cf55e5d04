"""What `wherry serve --on` says to the owners that it starts."""

from pathlib import Path

import pytest

from wherry.cli.pooled import owner_settings, resources_of
from wherry.cli.settings import read_settings
from wherry.values.errors import ConfigError


def test_an_owner_has_the_models_settings_from_wherever_they_were_said(tmp_path: Path) -> None:
    (tmp_path / "wherry.toml").write_text(
        "[server]\nport = 9000\nmax_in_flight = 7\n[models.hello]\ninstances = 2\n"
    )
    keys = tmp_path / "keys"
    keys.write_text("ci: 0123456789abcdef0123456789abcdef\n")
    keys.chmod(0o600)
    settings = read_settings(
        {"isolation": "thread", "api_key_file": str(keys), "on": "ray"},
        {"WHERRY_LOG_FORMAT": "json", "WHERRY_GRPC_PORT": "0", "WHERRY_REPLICAS": "1..8"},
        folder=tmp_path,
    )
    assert owner_settings(settings, "a token") == {
        "server": {
            "max_in_flight": 7,
            "isolation": "thread",
            "log_format": "json",
            "api_key": ("ci: 0123456789abcdef0123456789abcdef",),
            "cluster_token": "a token",
            "rows_max_message": 256 * 2**20,
        },
        "models": {"hello": {"instances": 2}},
    }
    here = read_settings({"api_key_file": str(keys), "on": "local"}, {}, folder=tmp_path)
    server = owner_settings(here, "a token")["server"]
    assert (server["api_key"], server["api_key_file"]) == ((), str(keys))  # read again by each


def test_resources_are_options_of_an_actor_or_the_clusters_own() -> None:
    said = ["num_gpus=0.5", "num_cpus=2", "accelerator_type=L4", "rack_7=1"]
    assert resources_of(said) == {
        "num_gpus": 0.5, "num_cpus": 2.0, "accelerator_type": "L4", "resources": {"rack_7": 1.0},
    }  # fmt: skip
    assert resources_of([]) == {}


@pytest.mark.parametrize("text", ["num_gpus", "=1", "num_gpus=", "num_gpus=many", "rack=[1]"])
def test_a_resource_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="replica_resource"):
        resources_of([text])
