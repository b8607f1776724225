"""Keeps the responses of one WebSocket, in front of the store of the deployment."""

from msgspec import Raw
from typing_extensions import override

from services.frontend.stored.memory import Clock, MemoryStore, R, StoreLimits


class ConnectionStore(MemoryStore):
    """The responses of one connection; the store of the deployment has the others."""

    def __init__(self, limits: StoreLimits, clock: Clock, deployment: MemoryStore) -> None:
        super().__init__(limits, clock)
        self._deployment = deployment

    @override
    async def get(
        self,
        kind: type[R],
        id: str,
        tenant: str | None,
        *,
        ended: bool = False,
        wait: bool = True,
    ) -> R | None:
        record = self.find(kind, id, tenant)
        if record is not None:
            return record
        return await self._deployment.get(kind, id, tenant, ended=ended, wait=wait)

    @override
    async def item(self, id: str, tenant: str | None) -> Raw | None:
        item = await super().item(id, tenant)
        if item is not None:
            return item
        return await self._deployment.item(id, tenant)
