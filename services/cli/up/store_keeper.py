"""Watches the disk of the embedded nats-server, and starts the server again after a full disk.

Otherwise the server would store nothing any more, also when there is room.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from services.cli.observer import observing
from services.cli.up.supervisor import Display, Supervisor
from services.frontend.rollouts.store import ROLLOUT_BUCKET
from services.frontend.stored.store import BUCKET
from services.images.store import IMAGE_BUCKET
from services.runtime.config import MIB, BusConfig
from services.runtime.storage.kv import LEDGER_BUCKET
from services.runtime.storage.write_watch import probe_subject, write_problem_at

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
            writes = [write_problem_at(bus, subject) for subject in PROBES.values()]
            if not any(await asyncio.gather(*writes)) or not await bus.flush():
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
