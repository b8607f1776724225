"""Watches the disk of the embedded nats-server, and starts the server again after a full disk.

Otherwise the server would store nothing any more, also when there is room.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from schemas.errors import TurnwireError, Unavailable
from services.cli.observer import observing
from services.cli.up.supervisor import Display, Supervisor
from services.frontend.rollouts.store import ROLLOUT_BUCKET
from services.frontend.stored.store import BUCKET
from services.images.store import IMAGE_BUCKET
from services.runtime.bus import Bus
from services.runtime.config import MIB, BusConfig
from services.runtime.storage.kv import LEDGER_BUCKET
from services.runtime.storage.write_watch import TIMEOUT_S, probe_subject, write_problem_at

CHECK_S = 5.0
TRY_EVERY = 6
"""Checks between two attempts to write, unless there was little room."""
LOW_BYTES = 64 * MIB
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


class StoreKeeper:
    """The store of one embedded server."""

    def __init__(
        self, directory: Path, nats: str, supervisor: Supervisor, display: Display
    ) -> None:
        """`directory`: where JetStream has its files; `nats`: the name of the server's process."""
        self._directory = directory
        self._nats = nats
        self._supervisor = supervisor
        self._display = display

    async def run(self, config: BusConfig) -> None:
        """Watches until cancelled. Raises Unavailable if there is no server at the start."""
        async with observing(config, "up", user="setup", log_level="error") as bus:
            low = False
            checks = 0
            while True:
                await asyncio.sleep(CHECK_S)
                checks += 1
                free = shutil.disk_usage(self._directory).free
                if free < LOW_BYTES and not low:
                    self._report_low(free)
                is_due = low or checks % TRY_EVERY == 0
                if is_due and free >= ROOM_BYTES and bus.connected and not await _takes_writes(bus):
                    self._display.report(
                        "nats-server stores nothing, as after a full disk; there is room now, so "
                        "it is started again: streams pause for a second"
                    )
                    self._supervisor.restart(self._nats)
                    await asyncio.sleep(RESTART_S)
                low = free < LOW_BYTES

    def _report_low(self, free: int) -> None:
        self._display.report(
            f"the disk with {self._directory} has {free // MIB} MiB left; when it is full, turns, "
            "Responses and images are not stored, and nats-server is started again when there is "
            "room"
        )


async def _takes_writes(bus: Bus) -> bool:
    try:
        await bus.jetstream(lambda js: js.account_info(), TIMEOUT_S)
    except Unavailable:  # it is switched off
        return not bus.connected
    except TurnwireError:
        return False
    problems = await asyncio.gather(
        *(write_problem_at(bus, subject) for subject in PROBES.values())
    )
    return not any(problems)
