"""Checks the bus: whether it can be reached, its message size, and the processes on it."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import TurnwireError
from services.cli.doctor.peers import (
    HeartbeatListener,
    check_clocks,
    check_frontends,
    check_signatures,
)
from services.cli.doctor.report import Finding
from services.cli.doctor.store import check_store
from services.cli.instances import GUESS_S
from services.cli.observer import observing
from services.runtime.config.masking import mask_passwords, mask_servers
from services.runtime.config.service import BusConfig
from services.runtime.config.tables import STAGES
from services.runtime.nats.bus import Bus

NEEDED_PAYLOAD = 8_000_000
"""A token id of a prompt takes 4 bytes: nats-server's default of 1 MiB is enough for 262,000 of
them."""

HEAVY_TOOLS = 10_000
"""Tokens of tools in a prompt from which on the report suggests `--defer-tools`."""


async def check_bus(
    config: BusConfig,
    explicit: bool,
    listen_s: float,
    urls: Sequence[str] = (),
    *,
    makes_buckets: bool = False,
) -> list[Finding]:
    """Checks the bus. `explicit`: the user named this server, so it is a failure if it cannot be
    reached. `urls`: frontends, which are asked which processes they see. `makes_buckets`: a
    `turnwire up` makes its buckets, so a missing one is a failure."""
    if not explicit:
        config = replace(config, connect_timeout_s=GUESS_S)
    try:
        user = config.nats_user or "tap"
        async with observing(config, "doctor", user=user, log_level="error") as bus:
            server = await _server(config, bus)
            listener = HeartbeatListener(config)
            await bus.subscribe(subjects.heartbeats(), listener.receive)
            store, _ = await asyncio.gather(
                check_store(bus, makes_buckets=makes_buckets), asyncio.sleep(listen_s)
            )
            return [server, store, *await asyncio.to_thread(_peers, listener, listen_s, urls)]
    except (TurnwireError, OSError, ValueError) as error:
        if explicit:
            return [Finding("fail", "bus", mask_passwords(error))]
        text = f"{mask_passwords(error)}, and no turnwire up runs, which starts one of its own"
        return [Finding("note", "bus", text)]


async def _server(config: BusConfig, bus: Bus) -> Finding:
    started = time.perf_counter()
    await bus.flush()
    ms = (time.perf_counter() - started) * 1e3
    text = f"{mask_servers(config.nats_url)}, {bus.max_payload:,} bytes a message, {ms:.1f} ms"
    if bus.max_payload >= NEEDED_PAYLOAD:
        return Finding("ok", "bus", text)
    remedy = "long prompts do not fit; set max_payload: 8MB in the server's configuration"
    return Finding("warn", "bus", f"{text}: {remedy}")


def _peers(listener: HeartbeatListener, listen_s: float, urls: Sequence[str]) -> list[Finding]:
    findings: list[Finding] = []
    if listener.others:
        text = (
            f"not used by those of {subjects.PREFIX}, which this release has: "
            f"{'; '.join(sorted(listener.others.values()))}"
        )
        findings.append(Finding("warn", "protocols", text))

    peers = list(listener.heartbeats.values())
    if not peers:
        return [*findings, Finding("note", "processes", f"no heartbeat within {listen_s:g} s")]
    for stage in STAGES:
        living = [peer for peer in peers if peer.stage == stage]
        text = "; ".join(map(describe, living))
        findings.append(Finding("ok" if living else "warn", stage, text or "none"))
    findings += _tools(peers)
    versions = {peer.version for peer in peers}
    if len(versions) > 1:
        text = f"several releases: {', '.join(sorted(versions))}"
        findings.append(Finding("warn", "versions", text))
    findings += check_signatures(listener)
    findings += check_frontends(peers, urls)
    findings += check_clocks(listener)
    return findings


def _tools(peers: Iterable[Heartbeat]) -> list[Finding]:
    """Finds what the tools of the last hour's sessions take of their prompts."""
    weights = [peer.load.tools for peer in peers if peer.load.tools is not None]
    if not weights:
        return []
    heaviest = max(weights, key=attrgetter("tokens"))
    text = (
        f"{heaviest.tokens:,} of {heaviest.prompt:,} tokens, in the heaviest of the last hour's "
        "prompts"
    )
    if heaviest.client:
        text += f" ({heaviest.client})"
    if heaviest.tokens < HEAVY_TOOLS:
        return [Finding("ok", "tools", text)]
    return [Finding("note", "tools", f"{text}: --defer-tools lists only the first ones")]


def describe(peer: Heartbeat) -> str:
    """Describes a process in a few words."""
    text = peer.id
    for card in peer.models:
        text += f" {card.name}"
        if card.max_model_len:
            text += f" ({card.max_model_len})"
    text += f", {peer.load.running} running"
    if peer.load.slots:
        text += f" of {peer.load.slots}"
    if peer.draining:
        text += ", draining"
    return text
