"""Checks the processes on the bus by their heartbeats: clocks, and those that others do not use.
Checks a running server over HTTP."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat
from services.cli.common import get
from services.cli.connect.server import ServerError, read_models
from services.cli.doctor.report import Finding
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Delivery
from services.runtime.presence.heartbeat_auth import FRESH_S, HeartbeatAuth

CLOCK_S = 2.0
"""Difference of clocks that is reported. A heartbeat is on its way for milliseconds."""
HEALTH_S = 5.0


class HeartbeatListener:
    """Notes the heartbeats on the bus."""

    def __init__(self, config: BusConfig) -> None:
        self.heartbeats: dict[tuple[str, str], Heartbeat] = {}
        self.others: dict[str, str] = {}
        """Subject, which names the process → a process of another protocol, in words."""
        self.behind_s: dict[str, float] = {}
        """Process → this machine's time less the process's, by the fastest heartbeat."""
        self.wrong_key: dict[str, None] = {}
        """The processes with heartbeats that were not signed with the configured key."""
        self._auth: HeartbeatAuth | None = None
        if config.heartbeat_key_file:
            log = structlog.get_logger()
            self._auth = HeartbeatAuth(config.heartbeat_key_file, CollectorRegistry(), log)

    def receive(self, delivery: Delivery) -> None:
        """Notes a heartbeat. Forgets a process that leaves: frontends no longer see it either."""
        if not subjects.is_own(delivery.subject):
            protocol, stage, process = subjects.heartbeat_sender(delivery.subject)
            self.others[delivery.subject] = f"{stage} {process} ({protocol})"
            return
        heartbeat = msgspec.json.decode(delivery.data, type=Heartbeat)
        name = name_of(heartbeat)
        if heartbeat.leaving:
            self.heartbeats.pop((heartbeat.stage, heartbeat.id), None)
            self.behind_s.pop(name, None)
            self.wrong_key.pop(name, None)
            return
        self.heartbeats[heartbeat.stage, heartbeat.id] = heartbeat
        if heartbeat.time:
            behind_s = time.time() - heartbeat.time
            self.behind_s[name] = min(behind_s, self.behind_s.get(name, behind_s), key=abs)
        if self._auth is not None and not self._auth.is_signed(delivery.data):
            self.wrong_key[name] = None


class _Health(msgspec.Struct):
    stages: dict[str, list[object]] = {}


def name_of(peer: Heartbeat) -> str:
    """Stage, id and machine."""
    return f"{peer.stage} {peer.id}" + (f" on {peer.host}" if peer.host else "")


def check_clocks(listener: HeartbeatListener) -> Iterator[Finding]:
    """Finds clocks that differ from this machine's."""
    wrong = [
        f"{process} by {seconds:+.0f} s"
        for process, seconds in sorted(listener.behind_s.items())
        if abs(seconds) > CLOCK_S
    ]
    if not wrong:
        return
    text = f"not this machine's time (+: slow): {'; '.join(wrong)}. Set the clocks by NTP"
    if len(wrong) == len(listener.behind_s) > 1:
        text += ", first this machine's: all others differ from it"
    if max(map(abs, listener.behind_s.values())) > FRESH_S:
        text += ", and restart the processes: others refuse their signed heartbeats"
        yield Finding("fail", "clocks", text)
    else:
        text += "; times in logs, traces and the inspector are wrong by that"
        yield Finding("warn", "clocks", text)


def check_signatures(listener: HeartbeatListener) -> Iterator[Finding]:
    """Finds processes that those with the configured heartbeat key refuse."""
    if listener.wrong_key:
        text = f"not signed with the key of --heartbeat-key-file: {'; '.join(listener.wrong_key)}"
        yield Finding("fail", "refused", f"{text}. Processes with the key refuse these")


def check_frontends(peers: Iterable[Heartbeat], urls: Iterable[str]) -> Iterator[Finding]:
    """Finds processes that send heartbeats and that a frontend does not see: it refuses them, or is
    on another bus."""
    for url in urls:
        health = _Health()
        with suppress(OSError, msgspec.MsgspecError):
            body = get(f"{url.rstrip('/')}/health", HEALTH_S)[1]
            health = msgspec.json.decode(body, type=_Health)
        hidden = [
            name_of(peer)
            for peer in peers
            if peer.stage in health.stages and peer.id not in str(health.stages[peer.stage])
        ]
        text = str(health.stages)
        if hidden and any(health.stages.values()) and all(peer.id not in text for peer in peers):
            text = f"{url} has other processes, on another bus: name it with --nats-url"
            yield Finding("warn", "another bus", text)
        elif hidden:
            text = f"{url} does not see {'; '.join(hidden)}: another heartbeat key or a wrong clock"
            yield Finding("fail", "refused", f"{text} (process.heartbeat_refused in its log)")


def check_server(url: str, key: str | None) -> Finding:
    """Checks whether the server at this address answers, with which models, and the key."""
    try:
        server = read_models(url, key)
    except ServerError as error:
        return Finding("fail", "server", str(error))
    try:
        server.require_models()
    except ServerError as error:
        return Finding("warn", "server", str(error))
    models = ", ".join(
        f"{model.id} ({model.max_model_len})" if model.max_model_len else model.id
        for model in server.models
    )
    return Finding("ok", "server", f"{server.url} serves {models}")
