"""What do the manifests in deploy/kubernetes come to?"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from wherry.server.cli import parser
from wherry.server.cli.settings import Settings, read_settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"

DOCKERFILE = (KUBERNETES / "Dockerfile").read_text()

Object = dict[str, Any]

#: By name: folders to render together, a kustomization first and then components on top of it.
COMPOSITIONS: dict[str, tuple[str, ...]] = {
    "one-node": ("overlays/one-node",),
    "cluster": ("overlays/cluster",),
    "gpu": ("overlays/gpu",),
    "model-volume": ("overlays/cluster", "components/model-volume"),
    "model-image": ("overlays/cluster", "components/model-image"),
    "keda": ("base", "components/monitoring", "components/keda"),
    "scale-to-zero": ("base", "components/keda", "components/scale-to-zero"),
    "inference-pool": ("overlays/cluster", "components/inference-pool"),
    "kserve": ("kserve",),
}

#: Those with a Deployment.
DEPLOYED = [name for name in COMPOSITIONS if name != "kserve"]


@functools.cache
def rendered(name: str) -> list[Object]:
    """The objects of a composition, as kubectl would apply them; skips the test without kubectl."""
    base, *components = COMPOSITIONS[name]
    if not components:
        return kustomized(KUBERNETES / base)
    with tempfile.TemporaryDirectory() as folder:

        def relative(path: str) -> str:
            return os.path.relpath(KUBERNETES / path, os.path.realpath(folder))

        wanted = {"resources": [relative(base)], "components": [*map(relative, components)]}
        Path(folder, "kustomization.yaml").write_text(json.dumps(wanted))
        return kustomized(Path(folder))


def kustomized(folder: Path) -> list[Object]:
    """The objects of a folder with a kustomization.yaml; skips the test without kubectl."""
    _check_kubectl()
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr  # of what is deprecated
    return list(yaml.safe_load_all(done.stdout))


@functools.cache
def _check_kubectl() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl (Debian: kubernetes-client)")
    told = subprocess.run(
        ["kubectl", "version", "--client", "--output=json"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    version = json.loads(told).get("kustomizeVersion", "before v5")
    if not version.startswith("v5."):
        pytest.skip(f"needs kubectl with kustomize v5, this one has {version}")


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (one for one in of_kind(objects, kind) if one["metadata"]["name"] == name)
    return found


def deployment(objects: list[Object]) -> Object:
    """The Deployment of the servers."""
    (found,) = filter(_has_servers, of_kind(objects, "Deployment"))
    return found


def _has_servers(one: Object) -> bool:
    return bool(one["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "server")


def pod_of(one: Object) -> Object:
    """The specification of a Deployment's pods, or of those that KServe makes for a runtime."""
    pod: Object = one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else one["spec"]
    return pod


def labels_of(one: Object) -> dict[str, str]:
    """The labels of a Deployment's pods."""
    labels: dict[str, str] = one["spec"]["template"]["metadata"]["labels"]
    return labels


def server_of(one: Object) -> Object:
    """The container with the server."""
    (container,) = pod_of(one)["containers"]
    assert isinstance(container, dict)
    return container


def port_names(one: Object) -> dict[str, int]:
    """The container's ports."""
    return {port["name"]: port["containerPort"] for port in server_of(one)["ports"]}


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def selectors(one: Object) -> Iterator[dict[str, str]]:
    """Everything in the object that selects pods by labels."""
    spec = one["spec"]
    match one["kind"]:
        case "Deployment":
            yield spec["selector"]["matchLabels"]
            for spread in pod_of(one).get("topologySpreadConstraints", ()):
                yield spread["labelSelector"]["matchLabels"]
        case "Service":
            yield spec["selector"]
        case "PodDisruptionBudget":
            yield spec["selector"]["matchLabels"]
        case "InferencePool":
            yield spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]
            for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
                for peer in (*rule.get("from", ()), *rule.get("to", ())):
                    if "podSelector" in peer:
                        yield peer["podSelector"]["matchLabels"]


def servers(name: str) -> Iterator[Object]:
    """The objects with a server's container."""
    yield from filter(_has_servers, of_kind(rendered(name), "Deployment"))
    yield from of_kind(rendered(name), "ServingRuntime")


def settings_of(container: Object) -> Settings:
    """What wherry makes of the container's arguments and variables."""
    words = container["args"]
    flags = {**vars(parser().parse_args(words)), "config": None}
    in_image = dict(re.findall(r"(WHERRY_\w+)=(\S+)", DOCKERFILE))
    said = {one["name"]: one.get("value", "a-secret-of-the-cluster") for one in container["env"]}
    return read_settings(flags, {**in_image, **said}, folder=Path("/nowhere"))
