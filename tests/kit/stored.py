"""Stores that frontends share over a real bus."""

import time

from typing_extensions import override

from services.frontend.peers import BusPeers, Peers
from services.frontend.stored.memory import StoreLimits
from services.frontend.stored.shared import SharedStore
from services.runtime.config.frontend import FrontendConfig
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket


class KnownPeers(BusPeers):
    """The frontends on the bus, of which those run that a test lists."""

    def __init__(self, process: Process, living: list[str]) -> None:
        super().__init__(process)
        self._living = living

    @override
    def is_alive(self, frontend: str) -> bool:
        return frontend in self._living


def shared_store(
    process: Process, bucket: Bucket, peers: Peers, config: FrontendConfig
) -> SharedStore:
    """The store of one frontend."""
    limits = StoreLimits.of(config)
    return SharedStore(limits, time.time, bucket, peers, process.log, spawn=process.spawn)
