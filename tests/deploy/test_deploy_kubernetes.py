"""deploy/kubernetes against the schemas of the Kubernetes API and against the code: every setting,
secret, probe and metric that the manifests name exists."""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from schemas.control import Load
from services.cli.main import main
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import Sources
from services.runtime.config.service import ServiceConfig, StageConfig
from services.runtime.config.tables import STAGES
from services.runtime.observability.metrics import LoadCollector
from tests.deploy.deployed import CONF
from tests.deploy.local_nats import LocalNats
from tests.deploy.rendered import Manifest, Rendered, kustomize
from tests.kit.certificates import Authority
from tests.kit.every import for_each, for_rows
from tests.kit.messages_client import Client, body, say
from tests.kit.nats import free_port
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

OVERLAYS = ("demo", "server", "trtllm", "vllm")


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


def everything(render: Render) -> Rendered:
    return render("demo", "nats-cluster", "nats-tls", "keda", "monitoring")


@pytest.mark.parametrize("version", ["1.37", pytest.param("1.30", marks=pytest.mark.slow)])
def test_every_manifest_is_valid(render: Render, version: str) -> None:
    """1.30 and 1.37: the versions of Kubernetes that the manifests are for."""
    seen: list[Manifest] = []
    for rendered in (everything(render), *map(render, OVERLAYS)):
        for manifest in rendered.manifests:
            is_foreign = manifest["kind"] in ("PodMonitor", "ScaledObject")  # schemas of others
            is_again = manifest["kind"] == "Secret" and bool(seen)  # with other values in each
            if manifest not in seen and not is_foreign and not is_again:
                kubernetes_validate.validate(manifest, version, strict=True)
        seen += rendered.manifests


def container(workload: Manifest) -> dict[str, Any]:
    only: dict[str, Any]
    (only,) = pod(workload)["containers"]
    return only


def pod(workload: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


@for_each(OVERLAYS)
def test_selectors_select_pods_and_pods_have_their_volumes(overlay: str, render: Render) -> None:
    rendered = render(overlay)
    workloads = rendered.all("Deployment", "StatefulSet", "Job")
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in workloads]
    selectors = [one["spec"]["selector"] for one in rendered.all("Service")]
    matching = rendered.all("Deployment", "StatefulSet", "PodDisruptionBudget")
    selectors += [one["spec"]["selector"]["matchLabels"] for one in matching]
    for selector in selectors:
        assert any(selector.items() <= own.items() for own in labels), selector
    for workload in workloads:
        claims = workload["spec"].get("volumeClaimTemplates", [])
        volumes = {claim["metadata"]["name"] for claim in claims}
        volumes |= {volume["name"] for volume in pod(workload).get("volumes", ())}
        mounts = {mount["name"] for mount in container(workload)["volumeMounts"]}
        assert mounts <= volumes, workload["metadata"]["name"]
        rendered.environment(workload)  # there are its ConfigMaps


def test_nats_runs_the_file_that_compose_runs_and_writes_to_the_disk(render: Render) -> None:
    config = render("demo").generated("ConfigMap", "nats-conf")
    assert config["data"] == {"nats.conf": CONF.read_text()}
    assert re.search(r'^  sync_interval: "always"$', CONF.read_text(), re.MULTILINE)
    volumes = pod(render("demo").get("StatefulSet", "nats"))["volumes"]
    (volume,) = [one for one in volumes if one["name"] == "config"]
    assert volume["projected"]["sources"][0]["configMap"]["name"] == config["metadata"]["name"]


def settings(rendered: Rendered, stage: str) -> ServiceConfig:
    return (
        Sources(env=rendered.environment(rendered.get("Deployment", stage)))
        .load(STAGES[stage])
        .config
    )


@for_rows(list(product(OVERLAYS, STAGES)))
def test_each_deployment_has_what_its_stage_needs(overlay: str, stage: str, render: Render) -> None:
    """Settings, secrets, the port, probes and time to drain."""
    rendered = render(overlay)
    deployment, config = rendered.get("Deployment", stage), settings(rendered, stage)
    own = container(deployment)
    assert (config.bus.nats_url, config.bus.nats_user) == ("nats://nats:4222", stage)
    files = [config.bus.nats_password_file, config.bus.heartbeat_key_file]
    files += [getattr(config, name, None) for name in ("seal_key_file", "api_keys_file")]
    mounted = {f"/secrets/{name}" for name in rendered.mounted(deployment, "/secrets")}
    assert mounted == set(filter(None, files))
    assert own["args"][:2] == ["serve", stage]
    port = config.metrics_port if isinstance(config, StageConfig) else getattr(config, "port", None)
    assert own["ports"] == [{"containerPort": port, "name": "http"}]

    hook = own.get("lifecycle", {}).get("preStop", {}).get("exec", {})
    name, seconds = hook.get("command", ["sleep", "0"])
    assert name == "sleep"
    assert (int(seconds) > 0) == (stage == "frontend"), "only the frontend is behind a Service"
    assert pod(deployment)["terminationGracePeriodSeconds"] > int(seconds) + config.drain_s
    probes = [own[f"{probe}Probe"] for probe in ("startup", "liveness", "readiness")]
    assert [probe["httpGet"]["path"] for probe in probes] == ["/live", "/live", "/ready"]
    patience_s = probes[2]["periodSeconds"] * probes[2]["failureThreshold"]
    waits_s = config.wait_s if isinstance(config, FrontendConfig) else 0.0
    assert patience_s >= waits_s, "requests wait for the bus"


@for_each(OVERLAYS)
def test_pods_are_hardened_and_survive_drains_of_nodes(overlay: str, render: Render) -> None:
    rendered = render(overlay)
    for workload in rendered.all("Deployment", "StatefulSet", "Job"):
        spec, own = pod(workload), container(workload)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        engine = overlay not in ("demo", "server") and workload["metadata"]["name"] == "worker"
        assert own["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": not engine,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(own["resources"]) == {"requests", "limits"}
    budgets = {
        m["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for m in rendered.all("PodDisruptionBudget")
    }
    assert budgets == {*STAGES, "nats"}


def test_the_autoscalers_ask_for_metrics_of_the_stages(render: Render) -> None:
    for scaled in render("vllm").all("ScaledObject"):
        metrics = LoadCollector(scaled["metadata"]["name"], lambda: Load(kv_used=0.5)).collect()
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] != "cpu":
                names = set(re.findall(r"turnwire_\w+", trigger["metadata"]["query"]))
                assert names
                assert names <= {metric.name for metric in metrics}


def test_only_connections_that_policies_name_are_allowed(render: Render) -> None:
    rendered = render("demo")
    policies = {m["metadata"]["name"]: m["spec"] for m in rendered.all("NetworkPolicy")}
    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (ingress,) = policies["nats"]["ingress"]
    part = {"app.kubernetes.io/part-of": "turnwire"}
    assert ingress["from"] == [{"podSelector": {"matchLabels": part}}]
    assert policies["frontend"]["ingress"] == [{"ports": [{"port": 8000}]}]
    kinds = {m["spec"].get("type") for m in rendered.all("Service")}
    assert kinds == {None}, "inside the cluster"
    for workload in rendered.all("Deployment", "Job", "StatefulSet"):
        assert part.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def test_the_job_finds_the_server_of_the_stateful_set_over_tls(
    render: Render,
    nats_binary: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    authority = Authority("cluster")
    certificate, key = authority.write(tmp_path, "server")
    files = {"tls.crt": Path(certificate).read_bytes(), "tls.key": Path(key).read_bytes()}
    rendered = render("demo", "nats-tls")
    places = {"$(POD_NAME)": "nats-0"}
    server = LocalNats(nats_binary, tmp_path, rendered, {"nats-tls": files}, places)
    try:
        server.wait()
        url = rendered.environment(rendered.get("Job", "turnwire-buckets"))["TURNWIRE_NATS_URL"]
        assert url.startswith("tls:")
        password = str(rendered.secrets / "setup" / "nats.password")
        address = url.replace("nats:4222", f"127.0.0.1:{server.port}")
        login = ["--nats-url", address, "--nats-user", "setup", "--nats-password-file", password]
        login += ["--nats-ca-file", authority.write_self(tmp_path / "ca.pem")]
        assert main(["buckets", *login]) == 0, capsys.readouterr().err
        assert "tw_ledger" in capsys.readouterr().out
    finally:
        server.stop()


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
        password = self.login("setup")["nats_password_file"]
        login = ["--nats-user=setup", f"--nats-password-file={password}"]
        for _ in range(10):
            if main(["buckets", f"--nats-url={self.url}", *login]) == 0:
                return
        raise RuntimeError("the cluster makes no buckets")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_survive_the_restart_of_every_server_of_the_cluster(
    render: Render,
    nats_binary: str,
    tmp_path: Path,
    demo_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its buckets have three copies, and a route needs a certificate."""
    rendered = render("demo", "nats-cluster")
    hook = container(rendered.get("StatefulSet", "nats"))["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["nats-server", "--signal", "ldm=1"]
    cluster = Cluster(nats_binary, tmp_path, rendered)
    stack = Stack(cluster, demo_dir, tmp_path)  # type: ignore[arg-type]
    try:
        for server in cluster.servers:
            server.wait()
        options: dict[str, Any] = {stage: cluster.login(stage) for stage in STAGES}
        options["worker"]["token_delay_ms"] = 20
        await asyncio.to_thread(stack.start_all, **options)
        made = capsys.readouterr().out
        assert made.count(", 3 copies") == 3, made
        with socket.create_connection(("127.0.0.1", cluster.ports[0]), LIMIT_S) as route:
            stranger = ssl.create_default_context()
            stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
            with pytest.raises(ssl.SSLError, match="certificate"):
                stranger.wrap_socket(route).recv(1)
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
