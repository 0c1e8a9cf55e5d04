"""How does `wherry serve --on ...` become a front, and its settings those of the owners?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from wherry.cli.settings import Settings
from wherry.deploy.on_processes import ProcessEngine
from wherry.deploy.on_ray import RESOURCES, RayEngine
from wherry.deploy.pooled_server import PooledServer, new_token
from wherry.deploy.replicas import OwnerEngine
from wherry.deploy.scaling import ReplicaBounds, Scaling
from wherry.frontends.access.api_keys import keys_of
from wherry.server.options import OPTIONS, Options, Tls
from wherry.values.errors import ConfigError

#: Groups of options that the owners have as they are said. Of the others the front has those that
#: are about its clients; an owner's addresses and token are chosen for it.
OF_OWNERS: Final = ("access", "capacity", "protocols", "repositories", "models", "command_line")


def pooled_server(settings: Settings, targets: Sequence[str], tls: Tls) -> PooledServer:
    """The front that the settings describe. Nothing is started yet. ConfigError for settings that
    a pool cannot have."""
    options = settings.options
    if options.listen.fronts:
        raise ConfigError("fronts and on: a pool has one front")
    token = options.cluster.cluster_token or new_token()
    scaling = Scaling(
        ReplicaBounds.parse(options.cluster.replicas or "1"), target=options.placement.target_wait
    )
    return PooledServer(
        _engine(options, targets, owner_settings(settings, token)),
        scaling,
        listen=options.listen,
        cluster=replace(options.cluster, cluster_token=token, replicas=None),
        tls=tls,
        access=settings.access(),
        capacity=options.capacity,
        protocols=options.protocols,
        life=options.life,
    )


def _engine(options: Options, targets: Sequence[str], settings: dict[str, Any]) -> OwnerEngine:
    on, drain_timeout = options.placement.on, options.life.drain_timeout
    if on == "local":
        return ProcessEngine(targets, settings, drain_timeout=drain_timeout)
    if on == "ray" or on.startswith("ray://"):
        return RayEngine(
            targets,
            settings,
            address=on if "://" in on else None,
            resources=resources_of(options.placement.replica_resources),
            drain_timeout=drain_timeout,
        )
    raise ConfigError(f"on: {on!r} is none of local, ray and ray://HOST")


def owner_settings(settings: Settings, token: str) -> dict[str, Any]:
    """The settings file of an owner: what was said, wherever that was."""
    options = settings.options
    server = {
        key: options.value(key)
        for key, option in OPTIONS.items()
        if option.group in OF_OWNERS and options.value(key) != option.default
    }
    server["api_key"] = settings.access().api_keys
    if options.placement.on != "local" and "api_key_file" in server:  # it is of this machine
        server["api_key"] += tuple(keys_of(server.pop("api_key_file")))
    server["cluster_token"] = token
    server["rows_max_message"] = options.cluster.rows_max_message
    return {"server": server, "models": dict(settings.models)}


def resources_of(said: Sequence[str]) -> Mapping[str, Any]:
    """NAME=VALUE of `replica_resource` as options of a Ray actor: a name that is none of them is a
    resource of the cluster's own."""
    found: dict[str, Any] = {}
    own: dict[str, float] = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"replica_resource: {text!r} is not NAME=VALUE, as num_gpus=1")
        if name == "accelerator_type":
            found[name] = value
            continue
        try:
            amount = msgspec.json.decode(value, type=float)
        except msgspec.DecodeError:
            raise ConfigError(f"replica_resource: {text!r}: {value!r} is no number") from None
        (found if name in RESOURCES else own)[name] = amount
    return {**found, "resources": own} if own else found
