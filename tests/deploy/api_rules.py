"""Rules of the Kubernetes API that no schema has, because they compare members with each other: the
API server refuses an object that breaks one, or pods never start."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tests.deploy.rendered import Manifest

WORKLOADS = ("Deployment", "StatefulSet", "Job")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def faults(manifests: list[Manifest], elsewhere: Iterable[str]) -> Iterator[str]:
    """What the API refuses, or what keeps pods from starting. `elsewhere`: ConfigMaps, Secrets and
    claims that something else creates."""
    names = Counter((one["kind"], one["metadata"]["name"]) for one in manifests)
    yield from (f"{kind} {name} exists twice" for (kind, name), n in names.items() if n > 1)
    known = {*names, *((kind, name) for kind in ("ConfigMap", "Secret") for name in elsewhere)}
    for one in manifests:
        place = f"{one['kind']} {one['metadata']['name']}"
        found = _workload(one, known) if one["kind"] in WORKLOADS else _selection(one, manifests)
        yield from (f"{place}: {fault}" for fault in found)


def _selection(one: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    """Faults of an object that selects pods or scales a workload."""
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        pods = _selected(spec.get("selector", {}), manifests)
        wanted = {port.get("targetPort", port["port"]) for port in spec["ports"]}
        yield from _ports(spec["ports"])
        if not pods or any(wanted - _targets(pod) for pod in pods):
            yield f"no pod has the ports {wanted}"
    elif one["kind"] == "NetworkPolicy":
        if not _selected(spec["podSelector"].get("matchLabels", {}), manifests):
            yield "selects no pod"
    elif one["kind"] == "PodDisruptionBudget":
        if not _selected(spec["selector"]["matchLabels"], manifests):
            yield "selects no pod"
        if ("minAvailable" in spec) == ("maxUnavailable" in spec):
            yield "needs one of minAvailable and maxUnavailable"
    elif one["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
        target = spec["scaleTargetRef"]["name"]
        if not any(m["kind"] in WORKLOADS and m["metadata"]["name"] == target for m in manifests):
            yield f"scales {target}, which does not exist"


def _workload(one: Manifest, known: set[tuple[str, str]]) -> Iterator[str]:
    spec, pod = one["spec"], one["spec"]["template"]["spec"]
    selector = spec.get("selector", {}).get("matchLabels", {})
    if not selector.items() <= _pod_labels(one).items():
        yield "the selector does not select its own pods"
    rolling = spec.get("strategy", {}).get("rollingUpdate", {})
    if rolling and {rolling.get("maxSurge"), rolling.get("maxUnavailable")} <= {0, "0"}:
        yield "an update can neither add nor remove a pod"
    if one["kind"] == "Job" and pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield "a Job needs a restart policy"
    for kind, source in _sources(pod):
        name = source.get("name") or source.get("secretName")
        if not source.get("optional", False) and (kind, name) not in known:
            yield f"there is no {kind} {name}"
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        yield from _container(container, volumes)


def _container(container: dict[str, Any], volumes: set[str]) -> Iterator[str]:
    mounts = container.get("volumeMounts", [])
    paths = Counter(mount["mountPath"] for mount in mounts)
    yield from (f"two mounts at {path}" for path, n in paths.items() if n > 1)
    yield from (f"no volume {name}" for name in {mount["name"] for mount in mounts} - volumes)
    variables = Counter(one["name"] for one in container.get("env", ()))
    yield from (f"{name} is set twice" for name, n in variables.items() if n > 1)
    yield from _ports(container.get("ports", []))
    ports = {port[key] for port in container.get("ports", ()) for key in port if key != "protocol"}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for handler in ("httpGet", "tcpSocket"):
            if (
                handler in (found := container.get(probe, {}))
                and found[handler]["port"] not in ports
            ):
                yield f"{probe} at a port that is not there"
    resources = container.get("resources", {})
    for name, requested in resources.get("requests", {}).items():
        if _number(requested) > _number(resources.get("limits", {}).get(name, requested)):
            yield f"requests more {name} than its limit"


def _ports(ports: list[dict[str, Any]]) -> Iterator[str]:
    names = [port["name"] for port in ports if "name" in port]
    yield from (f"bad port name {name}" for name in names if not _PORT_NAME.fullmatch(name))
    if len(set(names)) < len(names) or (len(ports) > 1 and len(names) < len(ports)):
        yield "ports need different names"


def _sources(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The ConfigMaps and Secrets that a pod names."""
    if isinstance(value, list):
        for inner in value:
            yield from _sources(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in ("configMap", "configMapRef", "configMapKeyRef"):
                yield "ConfigMap", inner
            elif key in ("secret", "secretRef", "secretKeyRef"):
                yield "Secret", inner
            else:
                yield from _sources(inner)


def _pod_labels(workload: Manifest) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def _selected(labels: dict[str, str], manifests: list[Manifest]) -> list[Manifest]:
    """The workloads with pods that have these labels."""
    workloads = [one for one in manifests if one["kind"] in WORKLOADS]
    return [one for one in workloads if labels.items() <= _pod_labels(one).items()]


def _targets(workload: Manifest) -> set[str | int]:
    """The names and numbers of a workload's ports."""
    containers = workload["spec"]["template"]["spec"]["containers"]
    ports = [port for container in containers for port in container.get("ports", ())]
    return {port["containerPort"] for port in ports} | {port.get("name", "") for port in ports}


def _number(quantity: str | int | float) -> float:
    number = str(quantity).rstrip("KMGTikm")
    return float(number) * _UNITS[str(quantity).removeprefix(number)]
