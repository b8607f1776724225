"""Runs the pods of deploy/kubernetes as processes: what the Deployments, the Service and the
kubelet do."""

import asyncio
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.cpu import cpu_seconds
from tests.chaos.deployment import free_port
from tests.deploy.rendered import DEPLOY, Manifest, documents
from tests.kit.stack import Child, Stack
from tests.kit.waiting import LIMIT_S

PROBE_S = 0.2


@dataclass(eq=False)
class Pod:
    """One process."""

    child: Child
    url: str
    """URL of probes and metrics."""
    ready: bool = False
    terminating: bool = False


class Fleet:
    """All Deployments. `Service`: `urls` of frontends that are ready and do not terminate."""

    def __init__(self, stack: Stack, speed: float, options: dict[str, dict[str, Any]]) -> None:
        """`speed`: by which the preStop hooks are shortened. `options`: of each stage's
        processes."""
        self._stack = stack
        self._speed = speed
        self._options = options
        self._specs = {stage: _deployment(stage) for stage in options}
        self._http: aiohttp.ClientSession | None = None
        self.pods: dict[str, list[Pod]] = {stage: [] for stage in options}
        """Stage → pods, without those that terminate."""
        self.wrong: list[str] = []
        """Processes that ended by themselves, or not with status 0."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Fleet":
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._http is not None
        await self._http.close()

    def urls(self) -> list[str]:
        return [pod.child.url for pod in self.pods["frontend"] if pod.ready]

    def counts(self) -> dict[str, int]:
        return {stage: len(pods) for stage, pods in self.pods.items()}

    def settled(self) -> bool:
        """Whether every pod is ready and none is starting or terminating."""
        return not self._tasks and all(pod.ready for pods in self.pods.values() for pod in pods)

    def scale(self, stage: str, count: int) -> None:
        """Starts pods, or terminates the newest ones."""
        pods = self.pods[stage]
        while len(pods) < count:
            self._start(stage)
        while len(pods) > count:
            self._spawn(self._terminate(pods.pop()))

    async def roll(self, stage: str) -> None:
        """A rolling update: every pod is replaced, by the strategy of the Deployment."""
        surge = self._specs[stage]["strategy"]["rollingUpdate"]["maxSurge"]
        for old in list(self.pods[stage]):
            if old not in self.pods[stage]:
                continue  # the autoscaler was faster
            if not surge:
                self.pods[stage].remove(old)
                await self._terminate(old)
            await self._ready(self._start(stage))
            if surge and old in self.pods[stage]:
                self.pods[stage].remove(old)
                self._spawn(self._terminate(old))

    async def metrics(self, stage: str) -> dict[str, str]:
        """The text of /metrics of each pod that is ready, by name."""
        pods = [pod for pod in self.pods[stage] if pod.ready]
        texts = await asyncio.gather(*(self._get(f"{pod.url}/metrics") for pod in pods))
        return {pod.child.name: text for pod, (_, text) in zip(pods, texts, strict=True)}

    def cpu_s(self, stage: str) -> dict[str, float]:
        """CPU seconds of each pod so far, as the kubelet reports them."""
        return {
            pod.child.name: cpu_seconds(pod.child.process.pid)
            for pod in self.pods[stage]
            if pod.ready
        }

    def _start(self, stage: str) -> Pod:
        options, port = dict(self._options[stage]), free_port()
        child = self._stack.start(
            stage, **options, **({"port": port} if stage == "frontend" else {"metrics_port": port})
        )
        pod = Pod(child, f"http://127.0.0.1:{port}")
        self.pods[stage].append(pod)
        self._spawn(self._probe(pod))
        return pod

    async def _probe(self, pod: Pod) -> None:
        path = self._specs[pod.child.stage]["readinessProbe"]["httpGet"]["path"]
        while not pod.ready and not pod.terminating:
            if pod.child.process.poll() is not None:
                self.wrong.append(f"{pod.child.name} ended by itself: {pod.child.text()[-500:]}")
                return
            status, _ = await self._get(pod.url + path)
            pod.ready = status == 200
            await asyncio.sleep(PROBE_S)

    async def _ready(self, pod: Pod) -> None:
        deadline = time.monotonic() + 4 * LIMIT_S
        while not pod.ready and time.monotonic() < deadline:
            await asyncio.sleep(PROBE_S)

    async def _terminate(self, pod: Pod) -> None:
        """preStop, SIGTERM, and the end within the grace period, of a pod that is no longer in
        `pods`."""
        pod.terminating = True
        spec = self._specs[pod.child.stage]
        await asyncio.sleep(spec["preStop"] / self._speed)
        if (status := pod.child.process.poll()) is None:
            pod.child.terminate()
            status = await asyncio.to_thread(pod.child.wait, spec["grace"])
        # A process that has not come up yet does not handle the signal.
        if status and (pod.ready or status != -signal.SIGTERM):
            self.wrong.append(f"{pod.child.name} ended with {status}: {pod.child.text()[-500:]}")

    async def _get(self, url: str) -> tuple[int, str]:
        assert self._http is not None
        try:
            async with self._http.get(url) as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.wrong.append(repr(error))


def settings(names: Sequence[str], directory: Path = DEPLOY / "kubernetes") -> dict[str, str]:
    """Lines of the base's settings.env with names that contain one of these."""
    lines = (directory / "base" / "settings.env").read_text().splitlines()
    pairs = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    return {name: value for name, value in pairs.items() if any(part in name for part in names)}


def _deployment(stage: str, directory: Path = DEPLOY / "kubernetes" / "base") -> dict[str, Any]:
    """What a Deployment states about the life of its pods."""
    common = next(documents((directory / "stage.yaml").read_text()))
    own: Manifest = next(
        one
        for one in documents((directory / f"{stage}.yaml").read_text())
        if one["kind"] == "Deployment"
    )
    spec = own["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    hook = (
        container.get("lifecycle", {})
        .get("preStop", {})
        .get("exec", {})
        .get("command", ["sleep", "0"])
    )
    return {
        "readinessProbe": common["spec"]["template"]["spec"]["containers"][0]["readinessProbe"],
        "strategy": own["spec"]["strategy"],
        "grace": spec["terminationGracePeriodSeconds"],
        "preStop": float(hook[1]),
    }
