"""What stands around the servers finds them."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import (
    DEPLOYED,
    DOCKERFILE,
    KUBERNETES,
    ROOT,
    Object,
    deployment,
    kustomized,
    labels_of,
    named,
    of_kind,
    pod_of,
    port_names,
    rendered,
    selectors,
    selects,
    server_of,
    servers,
    settings_of,
)
from wherry import Runtime, model
from wherry.cli.grafana import rules
from wherry.cli.settings import Settings
from wherry.frontends.admission import Admission
from wherry.observability.metrics import Metrics

each = pytest.mark.parametrize("name", DEPLOYED)

#: Kinds that select no pods by their labels.
WITHOUT_PODS = (
    "ConfigMap", "Secret", "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule",
)  # fmt: skip


@model
def quiet(text: str) -> str:
    return text


def known_ports(settings: Settings) -> dict[str, int | None]:
    """The ports that wherry listens on, by the names that the manifests give them."""
    listen = settings.options.listen
    named = {"http": listen.port, "grpc": listen.grpc_port, "metrics": listen.metrics_port}
    return {**named, "management": listen.management_port}


@each
def test_the_ports_of_a_container_are_those_that_wherry_listens_on(name: str) -> None:
    for one in servers(name):
        settings = settings_of(server_of(one))
        listened = {key: port for key, port in known_ports(settings).items() if port is not None}
        assert port_names(one) == listened
        exposed = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.M)[0].split()
        assert {str(port) for port in listened.values()} <= set(exposed)


@each
def test_the_autoscaler_reads_metrics_that_wherry_has(name: str) -> None:
    with Runtime(quiet) as runtime:
        samples = {
            sample.name
            for metric in Metrics(runtime, Admission(), "1").collect()
            for sample in metric.samples
        } | {
            metric.name + {"counter": "_total"}.get(metric.type, "")
            for metric in Metrics(runtime, Admission(), "1").collect()
        }
    values = yaml.safe_load((KUBERNETES / "components/autoscaling/adapter-values.yaml").read_text())
    rules = values["rules"]["custom"]
    assert {re.match(r"\w+", rule["seriesQuery"])[0] for rule in rules} <= samples  # type: ignore[index]
    served_as = {rule["name"]["as"] for rule in rules}
    read = {
        metric["pods"]["metric"]["name"]
        for one in of_kind(rendered(name), "HorizontalPodAutoscaler")
        for metric in one["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert read == (set() if name == "one-node" else served_as)


@each
def test_a_deployment_selects_the_pods_that_it_makes_and_no_others(name: str) -> None:
    deployments = of_kind(rendered(name), "Deployment")
    for one in deployments:
        for other in deployments:
            chosen = selects(one["spec"]["selector"]["matchLabels"], labels_of(other))
            assert chosen == (one is other)


@each
def test_every_selector_finds_pods(name: str) -> None:
    pods = [labels_of(one) for one in of_kind(rendered(name), "Deployment")]
    for one in rendered(name):
        if one["kind"] in WITHOUT_PODS:
            continue
        found = list(selectors(one))
        assert found
        for selector in found:
            assert any(selects(selector, labels) for labels in pods), (one["metadata"], selector)


@each
def test_every_name_of_a_port_is_one_of_the_pods_that_it_leads_to(name: str) -> None:
    objects = rendered(name)
    deployments = of_kind(objects, "Deployment")

    def ports_of(selector: dict[str, str]) -> list[set[str]]:
        return [set(port_names(one)) for one in deployments if selects(selector, labels_of(one))]

    for service in of_kind(objects, "Service"):
        wanted = {port["targetPort"] for port in service["spec"]["ports"]}
        assert all(wanted <= ports for ports in ports_of(service["spec"]["selector"]))
    for monitor in of_kind(objects, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        services = [
            {port["name"] for port in one["spec"]["ports"]}
            for one in of_kind(objects, "Service")
            if selects(selector, one["metadata"]["labels"])
        ]
        assert services
        assert all({e["port"] for e in monitor["spec"]["endpoints"]} <= one for one in services)


@each
def test_every_secret_map_volume_and_target_that_is_named_is_there(name: str) -> None:
    objects = rendered(name)
    for one in of_kind(objects, "Deployment"):
        pod = pod_of(one)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert "app.py" in named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
        for variable in server_of(one)["env"]:
            if "valueFrom" in variable:
                secret = variable["valueFrom"]["secretKeyRef"]
                assert secret["key"] in named(objects, "Secret", secret["name"])["data"]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        scaled = named(objects, target["kind"], target["name"])
        assert "replicas" not in scaled["spec"]  # or each apply would set it back


@each
def test_an_update_or_an_eviction_takes_no_more_than_one_pod_and_an_update_none(name: str) -> None:
    for one in of_kind(rendered(name), "Deployment"):
        rolling = one["spec"]["strategy"]["rollingUpdate"]
        assert rolling["maxUnavailable"] == 0
        assert rolling["maxSurge"] == 1
        budgets = [
            budget["spec"]["maxUnavailable"]
            for budget in of_kind(rendered(name), "PodDisruptionBudget")
            if selects(budget["spec"]["selector"]["matchLabels"], labels_of(one))
        ]
        assert budgets == [1]


def test_a_server_gets_a_gpu() -> None:
    assert server_of(deployment(rendered("gpu")))["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_one_node_needs_nothing_that_has_to_be_installed_before() -> None:
    groups = {one["apiVersion"] for one in rendered("one-node")}
    assert groups == {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}
    assert {d["spec"]["replicas"] for d in of_kind(rendered("one-node"), "Deployment")} == {1}


# The page.


def test_the_folder_of_the_page_is_a_deployment_of_ones_own(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/scale.md").read_text()
    ((name, text),) = re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL)
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text.replace("../wherry", os.path.relpath(ROOT, path.parent.resolve())))
    (path.parent / "app.py").write_text("# mine\n")
    objects = kustomized(path.parent)
    assert {one["metadata"]["namespace"] for one in objects} == {"models"}
    assert server_of(deployment(objects))["image"] == "example/wherry:0.1.0"
    (files,) = of_kind(objects, "ConfigMap")
    assert files["data"] == {"app.py": "# mine\n"}


# Who reaches whom.

_HERE = "default"


def _reached(objects: list[Object], source: tuple[str, dict[str, str]], to: Object) -> set[str]:
    """Names of the ports of a Deployment's pods that its network policies open to a source."""
    namespace, labels = source
    policies = [
        one["spec"]
        for one in of_kind(objects, "NetworkPolicy")
        if selects(one["spec"]["podSelector"]["matchLabels"], labels_of(to))
    ]
    assert any("Ingress" in one["policyTypes"] for one in policies)
    opened = set()
    for rule in (rule for one in policies for rule in one.get("ingress", ())):
        if "from" not in rule or any(_is(peer, namespace, labels) for peer in rule["from"]):
            opened |= {port["port"] for port in rule["ports"]}
    return opened


def _is(peer: Object, namespace: str, labels: dict[str, str]) -> bool:
    where = peer.get("namespaceSelector", {}).get("matchLabels")
    of_namespace = {"kubernetes.io/metadata.name": namespace}
    there = namespace == _HERE if where is None else selects(where, of_namespace)
    return there and selects(peer.get("podSelector", {}).get("matchLabels", {}), labels)


@each
def test_clients_reach_servers_and_metrics_go_to_monitoring_only(name: str) -> None:
    objects = rendered(name)
    server = deployment(objects)
    sources = {
        "a client": ("elsewhere", {"app": "shop"}),
        "a neighbour": (_HERE, {"app": "shop"}),
        "a server": (_HERE, labels_of(server)),
        "prometheus": ("monitoring", {}),
    }
    public = {"http", "grpc"}
    assert {name: _reached(objects, source, server) for name, source in sources.items()} == {
        **dict.fromkeys(sources, public),
        "prometheus": {*public, "metrics"},
    }


def test_pods_may_call_dns_only() -> None:
    objects = rendered("cluster")
    rules = [r for one in of_kind(objects, "NetworkPolicy") for r in one["spec"].get("egress", ())]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {53}
    isolated = [
        one["spec"]["podSelector"]["matchLabels"]
        for one in of_kind(objects, "NetworkPolicy")
        if "Egress" in one["spec"]["policyTypes"]
    ]
    assert any(selects(one, labels_of(deployment(objects))) for one in isolated)


def test_the_alerts_are_those_that_the_command_prints() -> None:
    (rule,) = of_kind(rendered("cluster"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(rules())
