"""A copy of the store that has the newest records a moment later."""

from collections.abc import AsyncIterator

from typing_extensions import override

from tests.frontend.rollouts.token_turns import TokenGateway, rollout
from tests.kit.frontend import serving
from tests.kit.rollouts import MemoryBucket, MemoryRollouts


class LateCopy(MemoryBucket):
    """A copy that lacks the newest values."""

    has_up_to: int | None = None
    """The last number that it has; None: it has all."""

    @override
    async def members_after(self, key: str, number: int) -> AsyncIterator[tuple[int, bytes]]:
        async for found, value in super().members_after(key, number):
            if self.has_up_to is None or found <= self.has_up_to:
                yield found, value


async def test_own_changes_hold_before_the_copy_has_them() -> None:
    bucket = LateCopy()
    async with serving(TokenGateway(), rollouts=MemoryRollouts(bucket)) as served:
        agent = await rollout(served)
        assert (await agent.ask()).status == 200
        assert (await agent.state())["turns"] == 1
        bucket.has_up_to = max(number for number, _ in bucket.values[agent.id].values())

        rewarded = await agent.call("PUT", "/reward", {"reward": 0.5})
        assert rewarded.json["reward"] == 0.5
        finished = await agent.call("POST", "/finish")
        assert finished.json["status"] == "finished"
        assert (await agent.ask("And now?")).status == 400

        bucket.has_up_to = None
        state = await agent.state()
        assert (state["status"], state["reward"]) == ("finished", 0.5)
