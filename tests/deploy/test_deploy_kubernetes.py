"""deploy/kubernetes against the schemas of the Kubernetes API and against the code: every setting,
secret, probe and metric that the manifests name exists."""

import asyncio
import copy
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from schemas.control import Load
from services.cli.main import main
from services.runtime.config import (
    STAGES,
    BucketsConfig,
    FrontendConfig,
    ServiceConfig,
    StageConfig,
)
from services.runtime.config.loader import Sources
from services.runtime.observability.metrics import LoadCollector
from tests.deploy.api_rules import faults
from tests.deploy.deployed import CONF
from tests.deploy.local_nats import LocalNats
from tests.deploy.rendered import DEPLOY, Manifest, Rendered, documents, kustomize
from tests.kit.certificates import Authority
from tests.kit.every import for_each, for_rows
from tests.kit.messages_client import Client, body, say
from tests.kit.nats import free_port
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

OVERLAYS = ("demo", "trtllm", "vllm")
OLDEST, NEWEST = "1.30", "1.37"
"""Versions of Kubernetes that the manifests are for."""


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rendered]:
    if kustomize() is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    made: dict[tuple[str, ...], Rendered] = {}

    def rendered(overlay: str, *components: str) -> Rendered:
        key = (overlay, *components)
        if key not in made:
            made[key] = Rendered(tmp_path_factory.mktemp("kubernetes"), overlay, components)
        return made[key]

    return rendered


Render = Callable[..., Rendered]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_is_valid(render: Render, version: str) -> None:
    rendered = [
        render("demo", "nats-cluster", "nats-tls", "keda", "monitoring"),
        *(render(overlay) for overlay in OVERLAYS),
    ]
    seen: list[Manifest] = []
    for manifest in (one for overlay in rendered for one in overlay.manifests):
        if manifest in seen or manifest["kind"] == "Secret":  # a Secret has other values in each
            continue
        seen.append(manifest)
        if manifest["kind"] in ("PodMonitor", "ScaledObject"):
            continue  # their schemas are not those of Kubernetes
        kubernetes_validate.validate(manifest, version, strict=True)
    for secret in rendered[0].all("Secret"):
        kubernetes_validate.validate(secret, version, strict=True)


ELSEWHERE = {"nats-tls", "nats-routes", "turnwire-hub"}
"""Secrets that the page says to create."""
BREAKS: dict[str, Callable[[Manifest], object]] = {
    "bad name": lambda one: one["metadata"].update(name="Frontend_1"),
    "bad label": lambda one: one["spec"]["template"]["metadata"]["labels"].update(x="a b"),
    "does not select its own pods": lambda one: one["spec"]["selector"]["matchLabels"].update(
        x="y"
    ),
    "neither add nor remove": lambda one: one["spec"]["strategy"].update(
        rollingUpdate={"maxSurge": 0, "maxUnavailable": 0}
    ),
    "two volumes with one name": lambda one: pod(one)["volumes"].append(pod(one)["volumes"][0]),
    "no volume": lambda one: pod(one)["volumes"].clear(),
    "two mounts at": lambda one: container(one)["volumeMounts"].extend(
        container(one)["volumeMounts"][:1]
    ),
    "is set twice": lambda one: container(one)["env"].append(container(one)["env"][0]),
    "bad port name": lambda one: container(one)["ports"][0].update(name="much-too-long-name"),
    "at a port that is not there": lambda one: container(one)["readinessProbe"].update(
        httpGet={"path": "/", "port": 1}
    ),
    "needs a successThreshold of 1": lambda one: container(one)["livenessProbe"].update(
        successThreshold=2
    ),
    "than its limit": lambda one: container(one)["resources"]["requests"].update(memory="9Ti"),
    "there is no ConfigMap": lambda one: container(one)["envFrom"].append(
        {"configMapRef": {"name": "lost"}}
    ),
}
"""A fault that the rules find, and how the frontend gets it."""


def container(workload: Manifest) -> dict[str, Any]:
    only: dict[str, Any]
    (only,) = pod(workload)["containers"]
    return only


def test_manifests_keep_the_rules_that_no_schema_has(render: Render) -> None:
    everything = render("demo", "nats-cluster", "nats-tls", "keda", "monitoring")
    for rendered in (everything, *map(render, OVERLAYS)):
        assert list(faults(rendered.manifests, ELSEWHERE)) == []


@for_each(list(BREAKS))
def test_broken_rule_is_found(fault: str, render: Render) -> None:
    manifests = copy.deepcopy(render("demo").manifests)
    (frontend,) = [
        one
        for one in manifests
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "frontend")
    ]
    BREAKS[fault](frontend)
    assert any(fault in found for found in faults(manifests, ELSEWHERE))


def test_nats_runs_the_file_that_compose_runs(render: Render) -> None:
    config = render("demo").generated("ConfigMap", "nats-conf")
    assert config["data"] == {"nats.conf": CONF.read_text()}
    (volume,) = [
        v
        for v in pod(render("demo").get("StatefulSet", "nats"))["volumes"]
        if v["name"] == "config"
    ]
    assert volume["projected"]["sources"][0]["configMap"]["name"] == config["metadata"]["name"]


def pod(workload: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def settings(rendered: Rendered, stage: str) -> ServiceConfig:
    return (
        Sources(env=rendered.environment(rendered.get("Deployment", stage)))
        .load(STAGES[stage])
        .config
    )


@for_rows(list(product(OVERLAYS, STAGES)))
def test_each_deployment_has_the_settings_ports_and_secrets_of_its_stage(
    overlay: str, stage: str, render: Render
) -> None:
    rendered = render(overlay)
    deployment = rendered.get("Deployment", stage)
    (container,) = pod(deployment)["containers"]
    config = settings(rendered, stage)
    assert (config.bus.nats_url, config.bus.nats_user) == ("nats://nats:4222", stage)
    files = [
        config.bus.nats_password_file,
        config.bus.heartbeat_key_file,
        getattr(config, "seal_key_file", None),
        getattr(config, "api_keys_file", None),
    ]
    mounted = {f"/secrets/{name}" for name in rendered.mounted(deployment, "/secrets")}
    assert mounted == set(filter(None, files))
    assert container["args"][:2] == ["serve", stage]
    port = config.metrics_port if isinstance(config, StageConfig) else getattr(config, "port", None)
    assert container["ports"] == [{"containerPort": port, "name": "http"}]


@for_rows(list(product(OVERLAYS, STAGES)))
def test_each_deployment_has_probes_and_time_to_drain(
    overlay: str, stage: str, render: Render
) -> None:
    spec, config = pod(render(overlay).get("Deployment", stage)), settings(render(overlay), stage)
    (container,) = spec["containers"]
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
    name, seconds = hook.get("command", ["sleep", "0"])
    assert name == "sleep"
    assert (int(seconds) > 0) == (stage == "frontend"), "only the frontend is behind a Service"
    assert spec["terminationGracePeriodSeconds"] > int(seconds) + config.drain_s
    paths = [
        container[f"{probe}Probe"]["httpGet"]["path"]
        for probe in ("startup", "liveness", "readiness")
    ]
    assert paths == ["/live", "/live", "/ready"]
    ready = container["readinessProbe"]
    patience_s = ready["periodSeconds"] * ready["failureThreshold"]
    waits_s = config.wait_s if isinstance(config, FrontendConfig) else 0.0
    assert patience_s >= waits_s, "requests wait for the bus"


@for_each(OVERLAYS)
def test_stages_share_one_model_and_the_overlay_sets_the_engine(
    overlay: str, render: Render
) -> None:
    rendered = render(overlay)
    models = {getattr(settings(rendered, stage), "model", None) for stage in STAGES} - {None}
    (worker,) = pod(rendered.get("Deployment", "worker"))["containers"]
    args, limits = worker["args"], worker["resources"]["limits"]
    if overlay == "demo":
        assert (models, args) == ({"/opt/turnwire/demo-model"}, ["serve", "worker"])
    else:
        assert len(models) == 1
        assert args == ["serve", "worker", "--engine", overlay]
        assert limits["nvidia.com/gpu"] == 1
        assert {settings(rendered, stage).bus.recovery_s for stage in STAGES} == {1200}, (
            "the same for all processes"
        )


def test_job_creates_the_buckets_as_user_setup(render: Render) -> None:
    job = render("demo").get("Job", "turnwire-buckets")
    config = Sources(env=render("demo").environment(job)).load(BucketsConfig).config
    assert (config.bus.nats_url, config.bus.nats_user) == ("nats://nats:4222", "setup")
    assert render("demo").mounted(job, "/secrets") == {"nats.password"}
    assert pod(job)["containers"][0]["args"] == ["buckets"]
    assert "ttlSecondsAfterFinished" in job["spec"], (
        "else a new image cannot be applied: a Job does not change"
    )


@for_each(OVERLAYS)
def test_pods_are_hardened_and_survive_drains_of_nodes(overlay: str, render: Render) -> None:
    rendered = render(overlay)
    for workload in rendered.all("Deployment", "StatefulSet", "Job"):
        spec, (container,) = pod(workload), pod(workload)["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        engine = overlay != "demo" and workload["metadata"]["name"] == "worker"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": not engine,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}
    budgets = {
        m["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for m in rendered.all("PodDisruptionBudget")
    }
    assert budgets == {*STAGES, "nats"}


@for_each(OVERLAYS)
def test_each_deployment_has_either_one_autoscaler_or_a_fixed_number(
    overlay: str, render: Render
) -> None:
    rendered = render(overlay)
    scaled = [
        m["spec"]["scaleTargetRef"]["name"]
        for m in rendered.all("HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert sorted(scaled) == sorted(
        ["frontend", "preprocessor", *(() if overlay == "demo" else ("parser", "worker"))]
    )
    fixed = [m["metadata"]["name"] for m in rendered.all("Deployment") if "replicas" in m["spec"]]
    assert sorted(scaled + fixed) == sorted(STAGES)


def test_the_autoscalers_read_metrics_that_the_stage_exposes(render: Render) -> None:
    for scaled in render("vllm").all("ScaledObject"):
        stage = scaled["metadata"]["name"]
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] == "cpu":
                continue
            names = set(re.findall(r"turnwire_\w+", trigger["metadata"]["query"]))
            assert names
            metrics = LoadCollector(stage, lambda: Load(kv_used=0.5)).collect()
            assert names <= {metric.name for metric in metrics}


def test_only_connections_that_policies_name_are_allowed(render: Render) -> None:
    policies = {m["metadata"]["name"]: m["spec"] for m in render("demo").all("NetworkPolicy")}
    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (ingress,) = policies["nats"]["ingress"]
    assert ingress["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "turnwire"}}}
    ]
    assert policies["frontend"]["ingress"] == [{"ports": [{"port": 8000}]}]
    assert [
        m["metadata"]["name"] for m in render("demo").all("Service") if m["spec"].get("type")
    ] == []
    labels = [
        m["spec"]["template"]["metadata"]["labels"]
        for m in render("demo").all("Deployment", "Job", "StatefulSet")
    ]
    assert all(one["app.kubernetes.io/part-of"] == "turnwire" for one in labels)


@pytest.fixture(params=["plain", "tls"])
def local_nats(
    request: pytest.FixtureRequest, render: Render, nats_binary: str, tmp_path: Path
) -> Iterator[tuple[LocalNats, Rendered, list[str]]]:
    flags: list[str] = []
    more: dict[str, dict[str, bytes]] = {}
    rendered = render("demo")
    if request.param == "tls":
        rendered = render("demo", "nats-cluster", "nats-tls", "keda")
        # A single server: its peers have no addresses here.
        args = pod(rendered.get("StatefulSet", "nats"))["containers"][0]["args"]
        rendered = Rendered(tmp_path / "tls", "demo", ["nats-tls"])
        alone = [arg.replace("cluster.conf", "nats.conf") for arg in args]
        assert pod(rendered.get("StatefulSet", "nats"))["containers"][0]["args"] == alone
        authority = Authority("cluster")
        certificate, key = authority.write(tmp_path, "server")
        flags = ["--nats-ca-file", authority.write_self(tmp_path / "ca.pem")]
        more = {
            "nats-tls": {
                "tls.crt": Path(certificate).read_bytes(),
                "tls.key": Path(key).read_bytes(),
            }
        }
    server = LocalNats(nats_binary, tmp_path, rendered, more, {"$(POD_NAME)": "nats-0"})
    yield server, rendered, flags
    server.stop()


def test_the_job_finds_the_server_of_the_stateful_set(
    local_nats: tuple[LocalNats, Rendered, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    server, rendered, flags = local_nats
    server.wait()
    url = rendered.environment(rendered.get("Job", "turnwire-buckets"))["TURNWIRE_NATS_URL"]
    assert url.startswith("tls:" if flags else "nats:")
    password = str(rendered.secrets / "setup" / "nats.password")
    address = url.replace("nats:4222", f"127.0.0.1:{server.port}")
    login = ["--nats-url", address, "--nats-user", "setup", "--nats-password-file", password]
    assert main(["buckets", *login, *flags]) == 0, capsys.readouterr().err
    assert "tw_ledger" in capsys.readouterr().out


class Cluster:
    """The three servers of the component `nats-cluster`, as a bus for a `Stack`."""

    def __init__(self, binary: str, directory: Path, rendered: Rendered) -> None:
        self._secrets = rendered.secrets
        ports = [free_port() for _ in range(3)]
        routes = {
            f"nats-{number}.nats-servers:6222": f"127.0.0.1:{port}"
            for number, port in enumerate(ports)
        }
        authority = Authority("routes")
        certificate, key = authority.write(directory, "routes")
        secret = {"tls.crt": Path(certificate).read_bytes(), "tls.key": Path(key).read_bytes()}
        secret["ca.crt"] = Path(authority.write_self(directory / "routes-ca.pem")).read_bytes()
        self.ports = ports
        self.servers = [
            LocalNats(
                binary,
                directory / f"nats-{number}",
                rendered,
                {"nats-routes": secret},
                {**routes, "0.0.0.0:6222": f"127.0.0.1:{port}", "$(POD_NAME)": f"nats-{number}"},
            )
            for number, port in enumerate(ports)
        ]
        self.url = ",".join(f"nats://127.0.0.1:{server.port}" for server in self.servers)

    def login(self, user: str) -> dict[str, str]:
        return {
            "nats_user": user,
            "nats_password_file": str(self._secrets / user / "nats.password"),
        }

    def make_buckets(self) -> None:
        """As the Job: again until the servers have a leader."""
        login = [
            f"--{name.replace('_', '-')}={value}" for name, value in self.login("setup").items()
        ]
        for _ in range(10):
            if main(["buckets", f"--nats-url={self.url}", *login]) == 0:
                return
        raise RuntimeError("the cluster makes no buckets")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def test_cluster_of_three_servers_keeps_three_copies_and_refuses_routes_without_a_certificate(
    render: Render, nats_binary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(
        nats_binary, tmp_path, Rendered(tmp_path / "rendered", "demo", ["nats-cluster"])
    )
    try:
        for server in cluster.servers:
            server.wait()
        cluster.make_buckets()
        made = capsys.readouterr().out
        assert made.count(", 3 copies") == 3, made
        for port in cluster.ports:
            with socket.create_connection(("127.0.0.1", port), LIMIT_S) as route:
                stranger = ssl.create_default_context()
                stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
                with (
                    pytest.raises(ssl.SSLError, match="certificate"),
                    stranger.wrap_socket(route) as tls,
                ):
                    tls.recv(1)
    finally:
        cluster.stop()


def test_acknowledged_write_is_on_disk(render: Render) -> None:
    text = render("demo").generated("ConfigMap", "nats-conf")["data"]["nats.conf"]
    assert re.search(r'^  sync_interval: "always"$', text, re.MULTILINE)


def test_pod_monitor_finds_the_metrics_of_every_stage(render: Render) -> None:
    rendered = render("demo", "nats-cluster", "nats-tls", "keda", "monitoring")
    (monitor,) = rendered.all("PodMonitor")
    (rule,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (rule["key"], rule["operator"], endpoint["path"]) == (
        "app.kubernetes.io/component",
        "In",
        "/metrics",
    )
    for workload in rendered.all("Deployment"):
        assert workload["spec"]["template"]["metadata"]["labels"][rule["key"]] in rule["values"]
        (container,) = pod(workload)["containers"]
        assert endpoint["port"] in [port["name"] for port in container["ports"]]
    assert sorted(rule["values"]) == sorted(STAGES)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_survive_the_restart_of_every_server_of_the_cluster(
    render: Render, nats_binary: str, tmp_path: Path, demo_dir: Path
) -> None:
    rendered = render("demo", "nats-cluster", "nats-tls", "keda")
    hook = pod(rendered.get("StatefulSet", "nats"))["containers"][0]["lifecycle"]["preStop"][
        "exec"
    ]["command"]
    assert hook == ["nats-server", "--signal", "ldm=1"]
    rendered = Rendered(tmp_path / "rendered", "demo", ["nats-cluster"])
    cluster = Cluster(nats_binary, tmp_path, rendered)
    stack = Stack(cluster, demo_dir, tmp_path)  # type: ignore[arg-type]
    try:
        for server in cluster.servers:
            server.wait()
        options: dict[str, Any] = {stage: cluster.login(stage) for stage in STAGES}
        options["worker"]["token_delay_ms"] = 20
        await asyncio.to_thread(stack.start_all, **options)
        client = Client(stack.url)
        text = " ".join(f"word{number}" for number in range(400))
        streams = [
            asyncio.create_task(client.stream(body(say(f"Hm.</think>{text}")))) for _ in range(8)
        ]
        for server in cluster.servers:
            server.drain([nats_binary, *hook[1:]])  # the clients move to the others
            server.start()
            await asyncio.to_thread(server.wait)
        for answer in await asyncio.gather(*streams):
            assert answer.stop_reason == "end_turn"
            assert answer.contents[-1] == ("text", text)
        await client.http.close()
    finally:
        stack.stop()
        cluster.stop()


def test_every_directory_is_used() -> None:
    """A component that no overlay names is described in the docs."""
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    overlays = "".join(
        path.read_text()
        for path in (DEPLOY / "kubernetes" / "overlays").glob("*/kustomization.yaml")
    )
    for component in (DEPLOY / "kubernetes" / "components").iterdir():
        assert f"components/{component.name}" in overlays + page
    for path in (DEPLOY / "kubernetes").rglob("*.yaml"):
        assert list(documents(path.read_text())), path
