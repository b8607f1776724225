"""Decides as Kubernetes' horizontal autoscaler does, by the manifests of deploy/kubernetes. Pure,
but for reading them.

The formula, the tolerance, the stabilisation windows and the policies are those of autoscaling/v2.
KEDA makes a HorizontalPodAutoscaler of each ScaledObject, and reads its metric.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.rendered import DEPLOY, Manifest, documents

TOLERANCE = 0.1
"""The default of `--horizontal-pod-autoscaler-tolerance`."""
SYNC_S = 15.0
"""The default of `--horizontal-pod-autoscaler-sync-period`."""
_TERM = re.compile(r"^(\w+)\{([^}]*)\}$")

Sample = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels."""


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
    manifests = [
        one for path in sorted(directory.rglob("*.yaml")) for one in documents(path.read_text())
    ]
    cores = {
        one["metadata"]["name"]: _cores(
            one["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        )
        for one in manifests
        if one.get("kind") == "Deployment" and "selector" in one["spec"]
    }
    found = {}
    for one in manifests:
        name = one.get("metadata", {}).get("name")
        if one.get("kind") == "HorizontalPodAutoscaler":
            spec = one["spec"]
            (metric,) = spec["metrics"]
            share = metric["resource"]["target"]["averageUtilization"] / 100
            found[name] = Target(
                name,
                spec["minReplicas"],
                spec["maxReplicas"],
                *_rules(spec),
                per_pod=cores[name] * share,
            )
        elif one.get("kind") == "ScaledObject":
            spec = one["spec"]
            (trigger,) = spec["triggers"]
            rules = _rules(spec["advanced"]["horizontalPodAutoscalerConfig"])
            limits = spec["minReplicaCount"], spec["maxReplicaCount"]
            if trigger["type"] == "cpu":
                share = float(trigger["metadata"]["value"]) / 100
                found[name] = Target(name, *limits, *rules, per_pod=cores[name] * share)
                continue
            query, threshold = trigger["metadata"]["query"], float(trigger["metadata"]["threshold"])
            found[name] = Target(name, *limits, *rules, query, threshold)
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


def scaled(target: Target, divide: float, speed: float, most: int) -> Target:
    """Adapts a target to a small machine: thresholds divided, times shortened, at most `most`
    pods."""

    def rules(of: Rules) -> Rules:
        policies = [Policy(one.kind, one.value, one.period_s / speed) for one in of.policies]
        return Rules(of.window_s / speed, tuple(policies))

    return Target(
        target.name,
        min(target.fewest, most),
        min(target.most, most),
        rules(target.up),
        rules(target.down),
        target.query,
        target.per_pod / divide,
    )


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


def evaluate(query: str, scrapes: Mapping[str, str]) -> float:
    """The value of a query of the form `sum(a{…} + b{…})`. `scrapes`: the text of /metrics, by pod;
    Prometheus adds the labels `namespace` and `pod`. Series are added where all labels but the name
    are equal, others are left out. Raises ValueError for another form."""
    inner = re.fullmatch(r"sum\((.*)\)", query)
    terms = [_TERM.match(term.strip()) for term in inner[1].split(" + ")] if inner else [None]
    samples = dict(_samples(scrapes))
    columns: list[dict[frozenset[tuple[str, str]], float]] = []
    for term in terms:
        if term is None:
            raise ValueError(f"not a sum of metrics: {query}")
        wanted = set(re.findall(r'(\w+)="([^"]*)"', term[2]))
        columns.append(
            {
                labels: value
                for (name, labels), value in samples.items()
                if name == term[1] and wanted <= labels
            }
        )
    return sum(
        sum(column[labels] for column in columns)
        for labels in columns[0]
        if all(labels in c for c in columns)
    )


def _samples(scrapes: Mapping[str, str]) -> Iterable[tuple[Sample, float]]:
    for pod, text in scrapes.items():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, "namespace": "turnwire", "pod": pod}
                yield (sample.name, frozenset(labels.items())), sample.value
