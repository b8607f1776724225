"""Decides as Kubernetes' horizontal autoscaler does, by the manifests of deploy/kubernetes. Pure,
but for reading them.

The formula, the tolerance, the stabilisation windows and the policies are those of autoscaling/v2.
KEDA makes a HorizontalPodAutoscaler of each ScaledObject, and reads its metric.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.rendered import DEPLOY, Manifest, documents

TOLERANCE = 0.1
"""The default of `--horizontal-pod-autoscaler-tolerance`."""


@dataclass(frozen=True)
class Policy:
    """How much may change within a time."""

    kind: str
    """`Pods` or `Percent`."""
    value: int
    period_s: float


@dataclass(frozen=True)
class Rules:
    """One direction."""

    window_s: float
    policies: tuple[Policy, ...]


@dataclass(frozen=True)
class Target:
    """What the manifest of an autoscaler states."""

    name: str
    fewest: int
    most: int
    up: Rules
    down: Rules
    query: str = ""
    """Query for Prometheus; "": CPU."""
    per_pod: float = 0.0
    """The query's value, or cores, for which the number of pods is right."""


DEFAULT_UP = Rules(0.0, (Policy("Percent", 100, 15.0), Policy("Pods", 4, 15.0)))
DEFAULT_DOWN = Rules(300.0, (Policy("Percent", 100, 15.0),))


def read_targets(directory: Path = DEPLOY / "kubernetes") -> dict[str, Target]:
    """The target of each stage, from the base and the component `keda`."""
    files = sorted(directory.rglob("*.yaml"))
    manifests = [one for path in files for one in documents(path.read_text())]
    cores: dict[str, float] = {}
    for one in manifests:
        if one.get("kind") == "Deployment" and "selector" in one["spec"]:
            (container, *_) = one["spec"]["template"]["spec"]["containers"]
            cores[one["metadata"]["name"]] = _cores(container["resources"]["requests"]["cpu"])

    found = {}
    for one in manifests:
        name, spec = one.get("metadata", {}).get("name"), one.get("spec", {})
        if one.get("kind") == "HorizontalPodAutoscaler":
            (metric,) = spec["metrics"]
            share = metric["resource"]["target"]["averageUtilization"] / 100
            limits = spec["minReplicas"], spec["maxReplicas"]
            found[name] = Target(name, *limits, *_rules(spec), per_pod=cores[name] * share)
        elif one.get("kind") == "ScaledObject":
            (trigger,) = spec["triggers"]
            rules = _rules(spec["advanced"]["horizontalPodAutoscalerConfig"])
            limits = spec["minReplicaCount"], spec["maxReplicaCount"]
            metadata = trigger["metadata"]
            if trigger["type"] == "cpu":
                per_pod = cores[name] * float(metadata["value"]) / 100
                found[name] = Target(name, *limits, *rules, per_pod=per_pod)
            else:
                per_pod = float(metadata["threshold"])
                found[name] = Target(name, *limits, *rules, metadata["query"], per_pod)
    return found


def _rules(spec: Manifest) -> tuple[Rules, Rules]:
    def direction(name: str, default: Rules) -> Rules:
        written: dict[str, Any] = spec.get("behavior", {}).get(name, {})
        policies = [
            Policy(one["type"], one["value"], one["periodSeconds"])
            for one in written.get("policies", ())
        ]
        return Rules(
            written.get("stabilizationWindowSeconds", default.window_s),
            tuple(policies) or default.policies,
        )

    return direction("scaleUp", DEFAULT_UP), direction("scaleDown", DEFAULT_DOWN)


def _cores(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


@dataclass
class Autoscaler:
    """One HorizontalPodAutoscaler."""

    target: Target
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now: float, current: int, value: float) -> int:
        """The number of pods from now on. `value`: of all pods together; `now` in seconds."""
        target = self.target
        ratio = value / (target.per_pod * current)
        wanted = (
            current if abs(ratio - 1) <= TOLERANCE else math.ceil(round(value / target.per_pod, 6))
        )
        wanted = max(target.fewest, min(target.most, wanted))
        self._recommended.append((now, wanted))
        wanted = self._stable(now, current, wanted)
        wanted = self._limited(now, current, wanted)
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _stable(self, now: float, current: int, wanted: int) -> int:
        """The lowest recommendation of the window for more, the highest for less."""
        up, down = self.target.up.window_s, self.target.down.window_s
        self._recommended = [
            (at, count) for at, count in self._recommended if at >= now - max(up, down)
        ]
        lowest = min(count for at, count in self._recommended if at >= now - up)
        highest = max(count for at, count in self._recommended if at >= now - down)
        if wanted > current:
            return max(current, lowest)
        return min(current, highest)

    def _limited(self, now: float, current: int, wanted: int) -> int:
        """Applies the policy that allows most."""

        def start(policy: Policy) -> int:
            return current - sum(
                change for at, change in self._changes if at > now - policy.period_s
            )

        if wanted > current:
            limits = [
                start(p) + p.value
                if p.kind == "Pods"
                else math.ceil(start(p) * (1 + p.value / 100))
                for p in self.target.up.policies
            ]
            return max(current, min(wanted, *[max(limits)]))
        limits = [
            start(p) - p.value if p.kind == "Pods" else math.floor(start(p) * (1 - p.value / 100))
            for p in self.target.down.policies
        ]
        return min(current, max(wanted, *[min(limits)]))
