"""What stands around the servers finds them."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

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
from tests.grafana import rules
from tests.prometheus import needs_prometheus
from wherry import Runtime, model
from wherry.core.observability.metrics import Metrics
from wherry.server.calls.admission import Admission
from wherry.server.cli.settings import Settings

each = pytest.mark.parametrize("name", DEPLOYED)

#: Kinds that select no pods by their labels.
WITHOUT_PODS = (
    "ConfigMap", "Secret", "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule",
    "ScaledObject", "InterceptorRoute", "HTTPRoute", "ServiceAccount", "Role", "RoleBinding",
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
        }
    rules = adapter_rules()
    queries = [rule[key] for rule in rules for key in ("seriesQuery", "metricsQuery")]
    queries += [trigger["query"] for trigger in prometheus_triggers(rendered(name)).values()]
    assert set(re.findall(r"wherry_\w+", " ".join(queries))) <= samples
    served_as = {rule["name"]["as"] for rule in rules}
    read = {
        metric["pods"]["metric"]["name"]
        for one in of_kind(rendered(name), "HorizontalPodAutoscaler")
        for metric in one["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    without = of_kind(rendered(name), "ScaledObject") or name == "one-node"
    assert read == (set() if without else served_as)


def adapter_rules() -> list[Object]:
    values = yaml.safe_load((KUBERNETES / "components/autoscaling/adapter-values.yaml").read_text())
    rules: list[Object] = values["rules"]["custom"]
    return rules


def prometheus_triggers(objects: list[Object]) -> dict[str, dict[str, str]]:
    """The metadata of KEDA's triggers that ask Prometheus, by name."""
    return {
        trigger["name"]: trigger["metadata"]
        for one in of_kind(objects, "ScaledObject")
        for trigger in one["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    }


class Use(NamedTuple):
    """What a pod does, and how many pods of three these are enough for."""

    rows_per_second: float
    row_seconds: float
    slots_used: float
    pods: int


@pytest.mark.parametrize("use", [
    # 5 ms and 0.2 ms a row, at most 32: a row of a full batch takes 0.35625 ms.
    Use(533, 0.00035625, 0.0, 1),  # 19 % busy, though some batch may run all the time
    Use(1_400, 0.00035625, 0.0, 3),  # 50 % of three are more than 70 % of two
    Use(2_700, 0.00035625, 0.0, 5),
    Use(0, 0.0, 0.19, 1),  # of the slots of a language model
    Use(900, 0.0, 0.9, 4),
    Use(0, 0.00035625, 0.0, 0),
])  # fmt: skip
def test_pods_that_full_batches_do_not_need_go(use: Use, tmp_path: Path) -> None:
    """By promtool, which has the clock: KEDA takes ceil(value / threshold) pods, and an HPA
    ceil(pods x mean / target)."""
    series: dict[str, str] = {}
    for pod in "abc":
        of = f'namespace="default",service="wherry",pod="{pod}",model="m",version="1"'
        grows = use.rows_per_second * 15
        # A second model of each pod is idle: the busiest counts.
        series |= {
            f"wherry_batch_size_sum{{{of}}}": f"0+{grows}x20",
            f"wherry_full_batch_row_seconds{{{of}}}": f"{use.row_seconds}x20",
            f"wherry_slots_used_ratio{{{of}}}": f"{use.slots_used}x20",
            f'wherry_batch_size_sum{{{of},idle="1"}}': "0x20",
            f'wherry_full_batch_row_seconds{{{of},idle="1"}}': "0.5x20",
            f'wherry_slots_used_ratio{{{of},idle="1"}}': "0x20",
        }
    keda = prometheus_triggers(rendered("keda"))["utilisation"]
    (rule,) = (one for one in adapter_rules() if one["name"]["as"] == "wherry_utilisation")
    adapter = (
        rule["metricsQuery"]
        .replace("<<.Series>>", "wherry_full_batch_row_seconds")
        .replace("<<.LabelMatchers>>", 'namespace="default",pod=~"a|b|c"')
        .replace("<<.GroupBy>>", "pod")
    )
    assert "<<" not in adapter
    (scaler,) = of_kind(rendered("cluster"), "HorizontalPodAutoscaler")
    metrics = {one["pods"]["metric"]["name"]: one["pods"] for one in scaler["spec"]["metrics"]}
    target = metrics["wherry_utilisation"]["target"]["averageValue"]
    assert target == f"{float(keda['threshold']) * 1000:.0f}m"
    asked = [f"ceil(({keda['query']}) / {keda['threshold']})",
             f"ceil(sum({adapter}) / {keda['threshold']})"]  # fmt: skip
    told = {"exp_samples": [{"labels": "{}", "value": use.pods}], "eval_time": "4m"}
    check = {
        "interval": "15s",
        "input_series": [{"series": name, "values": grow} for name, grow in series.items()],
        "promql_expr_test": [{"expr": expr, **told} for expr in asked],
    }
    (tmp_path / "test.json").write_text(json.dumps({"tests": [check]}))
    done = subprocess.run(
        [needs_prometheus("promtool"), "test", "rules", "test.json"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_ours_wakes_a_server_that_is_not_there() -> None:
    """Only who holds the requests can: the interceptor."""
    (one,) = of_kind(rendered("scale-to-zero"), "ScaledObject")
    route = named(rendered("scale-to-zero"), "InterceptorRoute", "wherry")
    assert one["spec"]["minReplicaCount"] == 0
    pushed = [t["metadata"] for t in one["spec"]["triggers"] if t["type"] == "external-push"]
    assert [each["interceptorRoute"] for each in pushed] == [route["metadata"]["name"]]
    target = route["spec"]["target"]
    service = named(rendered("scale-to-zero"), "Service", target["service"])
    assert target["portName"] in {port["name"] for port in service["spec"]["ports"]}
    probe = server_of(deployment(rendered("scale-to-zero")))["startupProbe"]
    loads = probe["periodSeconds"] * probe["failureThreshold"]
    assert route["spec"]["timeouts"]["readiness"] == f"{loads}s"


def test_a_picker_reads_the_metrics_of_the_pods_that_it_picks_from() -> None:
    objects = rendered("inference-pool")
    pool, server = named(objects, "InferencePool", "wherry"), deployment(objects)
    ports = port_names(server)
    assert selects(pool["spec"]["selector"]["matchLabels"], labels_of(server))
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == [ports["http"]]
    picker = named(objects, "Deployment", pool["spec"]["endpointPickerRef"]["name"])
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in server_of(picker)["args"])
    assert flags["pool-name"] == pool["metadata"]["name"]
    assert int(flags["model-server-metrics-port"]) == ports["metrics"]
    assert int(flags["grpc-port"]) == pool["spec"]["endpointPickerRef"]["port"]["number"]
    assert "metrics" in _reached(objects, (_HERE, labels_of(picker)), server)
    assert (
        pod_of(picker)["terminationGracePeriodSeconds"]
        > pod_of(server)["terminationGracePeriodSeconds"]
    )
    role = named(objects, "Role", pod_of(picker)["serviceAccountName"])
    assert {"pods", "inferencepools"} <= {r for rule in role["rules"] for r in rule["resources"]}


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
    for one in servers(name):
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
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        scaled = named(objects, target["kind"], target["name"])
        assert "replicas" not in scaled["spec"]  # or each apply would set it back


@each
def test_an_update_or_an_eviction_takes_no_more_than_one_pod_and_an_update_none(name: str) -> None:
    for one in servers(name):
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
    page = (ROOT / "docs/how-to/deploy.md").read_text()
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
