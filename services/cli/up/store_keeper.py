"""Watches the disk of the embedded nats-server, and starts the server again after a full disk.

Otherwise the server would store nothing any more, also when there is room.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from schemas.errors import TurnwireError
from services.cli.observer import observing
from services.cli.up.supervisor import Display, Supervisor
from services.frontend.rollouts.store import ROLLOUT_BUCKET
from services.frontend.stored.shared import BUCKET
from services.images.store import IMAGE_BUCKET
from services.runtime.config.base import MIB
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus
from services.runtime.storage.kv import LEDGER_BUCKET
from services.runtime.storage.write_watch import TIMEOUT_S, probe_subject, write_problem_at

CHECK_S = 10.0
ROOM_BYTES = 8 * MIB
"""Room with which a restart of the server helps."""
RESTART_S = 60.0
"""The least time between two restarts: the problem may be another one."""
PROBES: Mapping[str, str] = {
    name: probe_subject(name, has_members=has_members)
    for name, has_members in (
        (LEDGER_BUCKET, True),
        (BUCKET, False),
        (IMAGE_BUCKET, False),
        (ROLLOUT_BUCKET, True),
    )
}
"""The subjects of values that only test whether the buckets take writes."""


async def keep_store(
    config: BusConfig, directory: Path, nats: str, supervisor: Supervisor, display: Display
) -> None:
    """Watches the store until cancelled. Raises Unavailable if there is no server at the start.

    `directory`: where JetStream has its files; `nats`: the name of the server's process.
    """
    async with observing(config, "up", user="setup", log_level="error") as bus:
        is_full = False
        while True:
            await asyncio.sleep(CHECK_S)
            if await _stores(bus) or not await bus.flush():
                continue
            if shutil.disk_usage(directory).free < ROOM_BYTES:
                if not is_full:
                    text = f"nats-server stores nothing: the disk of {directory} is full"
                    display.report(text, "error")
                is_full = True
                continue
            is_full = False
            display.report(
                "nats-server stores nothing, as after a full disk; there is room now, so it is "
                "started again: streams pause for a second",
                "warning",
            )
            supervisor.restart(nats)
            await asyncio.sleep(RESTART_S)


async def _stores(bus: Bus) -> bool:
    """Whether the server has JetStream, which it may turn off on a full disk, and all buckets that
    there are take writes."""
    try:
        await bus.jetstream(lambda js: js.account_info(), TIMEOUT_S)
    except TurnwireError:
        return False
    writes = [write_problem_at(bus, subject) for subject in PROBES.values()]
    problems = await asyncio.gather(*writes, return_exceptions=True)
    return not any(isinstance(problem, str) for problem in problems)
