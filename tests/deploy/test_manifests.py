"""The manifests are valid, and speak of what exists: ports, labels, flags, paths and metrics."""

import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import (
    COMPOSITIONS,
    DOCKERFILE,
    Object,
    named,
    of_kind,
    pod_of,
    rendered,
    server_of,
    servers,
    settings_of,
)
from tests.http_exchange import served
from wherry import model
from wherry.server.options import OPTIONS, PREFIX

#: The first Kubernetes that has all of what is used (preStop's sleep), and the latest known.
VERSIONS = ("1.30.0", kubernetes_validate.latest_version())


@model
def quiet(text: str) -> str:
    return text


# The objects by themselves.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_object_is_valid(name: str, version: str) -> None:
    schemas = yaml.safe_load((Path(__file__).parent / "custom_kinds.yaml").read_text())
    for one in rendered(name):
        schema = schemas.get(f"{one['apiVersion']}/{one['kind']}")
        if schema is None:
            kubernetes_validate.validate(one, version, strict=True)
            continue
        jsonschema.validate(one, schema)
        for known in _known_within(one):
            kubernetes_validate.validate(known, version, strict=True)


def _known_within(one: Object) -> Iterator[Object]:
    """What a custom resource has of pods, as a Pod, and of an autoscaler, as one."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "made"}}
    if one["kind"] == "ServingRuntime":
        spec = {key: one["spec"][key] for key in ("containers", "volumes")}
        yield {**pod, "spec": spec}
    elif one["kind"] == "InferenceService":
        model = one["spec"]["predictor"]["model"]
        own = {"modelFormat", "runtime", "protocolVersion", "storageUri"}
        container = {key: value for key, value in model.items() if key not in own}
        yield {**pod, "spec": {"containers": [{"name": "kserve-container", **container}]}}
    elif one["kind"] == "ScaledObject":
        behavior = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        spec = {"scaleTargetRef": one["spec"]["scaleTargetRef"], "maxReplicas": 1}
        scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
        yield {**scaler, "metadata": {"name": "made"}, "spec": {**spec, "behavior": behavior}}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_no_two_objects_have_the_same_name(name: str) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered(name)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_container_has_no_rights_and_a_bound_of_memory(name: str) -> None:
    user = int(re.findall(r"^USER (\d+)", DOCKERFILE, re.M)[0])
    for one in servers(name):
        pod = pod_of(one)
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            assert context["runAsNonRoot"]
            assert context["runAsUser"] == user
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "memory" in container["resources"]["limits"]
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert container not in pod["containers"] or "/tmp" in mounted


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_image_has_the_version_of_the_sources(name: str) -> None:
    version = re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.M)[0]
    assert {server_of(one)["image"] for one in servers(name)} == {f"wherry:{version}"}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_server_has_the_time_to_drain(name: str) -> None:
    for one in servers(name):
        drain = settings_of(server_of(one)).options.life.drain_timeout
        sleep = server_of(one).get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        grace = pod_of(one).get("terminationGracePeriodSeconds", 30)
        assert grace >= sleep.get("seconds", 0) + drain + 5
    for one in of_kind(rendered(name), "InferenceService"):
        predictor = one["spec"]["predictor"]
        runtime = named(rendered(name), "ServingRuntime", predictor["model"]["runtime"])
        drain = settings_of(server_of(runtime)).options.life.drain_timeout
        sleep = predictor["model"]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert predictor["terminationGracePeriodSeconds"] >= sleep + drain + 5


# What they say of wherry.


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_flag_and_variable_is_one_that_wherry_knows(name: str) -> None:
    known = {option.variable for option in OPTIONS.values()}
    for one in servers(name):
        container = server_of(one)
        variables = {entry["name"] for entry in container["env"]}
        assert {each for each in variables if each.startswith(PREFIX)} <= known
        settings_of(container)  # which ends the program for a flag that there is not


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_probes_ask_a_path_and_a_port_that_wherry_serves(name: str) -> None:
    with served(quiet) as client:
        routes = client.app._routes
    for one in servers(name):
        container = server_of(one)
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
        http = settings_of(container).options.listen.port
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["path"] in routes
            assert ports.get(asked["port"], asked["port"]) == http
        # A server that is only busy, or waits for an owner, is not started again.
        assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
        assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
        live = container["livenessProbe"]
        assert live["periodSeconds"] * live["failureThreshold"] >= 60
