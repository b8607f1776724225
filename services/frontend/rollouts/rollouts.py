"""Keeps the rollouts of all frontends: makes, finds, ends and rewards them.

Every frontend serves every rollout. It reads the records that are new before each turn, so that
limits and the end of a rollout hold everywhere, also where a notice was lost.
"""

import asyncio
import secrets
import time
from typing import Literal

from cachetools import LRUCache
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import Invalid, NotFound
from schemas.notices import RolloutChanged
from services.frontend.http.auth import Caller, Callers
from services.frontend.http.middleware import RolloutCallers
from services.frontend.peers import Peers
from services.frontend.rollouts.limits import reached_limit
from services.frontend.rollouts.store import RolloutStore
from services.frontend.rollouts.view import RolloutView
from services.rollouts.rollout import ROLLOUT_PREFIX, Rewards, Rollout, RolloutState
from services.rollouts.sample_lines import MissingTurn
from services.runtime.config.base import MIB
from services.runtime.listeners import Listeners, raise_error
from services.runtime.storage.kv import place_of

MAX_VIEW_BYTES = 64 * MIB
"""Limit of the views of rollouts in a frontend, which have no tokens."""
VIEW_BYTES = 16 * 1024
"""Bytes of a rollout of fifty turns besides its metadata, about."""
FRESH_S = 0.25
"""Seconds for which a view that was read counts as new."""
SETTLE_S = 5.0
"""How long the end of a rollout waits until the turns that have ended are stored."""
POLL_S = 0.05
AGAIN_S = 0.1
"""Pause before a rollout that is not found is looked for again: a copy of the store may lack it
for a moment."""


class Rollouts(RolloutCallers):
    """The rollouts, as one frontend sees them."""

    def __init__(self, store: RolloutStore, peers: Peers, callers: Callers) -> None:
        self.store = store
        self.peers = peers
        self.on_cancel = Listeners[RolloutChanged](raise_error)
        """Called with each notice that cancels turns."""
        self._callers = callers
        self._views: LRUCache[str, RolloutView] = LRUCache(MAX_VIEW_BYTES, _size)
        """Views by the places of their rollouts, as in notices."""

    @override
    async def caller(self, id: str) -> Caller:
        view = await self.find(id)
        return self._callers.of_rollout(view.rollout)

    async def make(self, rollout: Rollout) -> RolloutView:
        """Stores a new rollout under an id of its own. Raises TurnwireError."""
        rollout = replace(rollout, id=ROLLOUT_PREFIX + secrets.token_hex(16), created=time.time())
        await self.store.put(rollout.id, rollout)
        return await self.find(rollout.id)

    async def find(self, id: str) -> RolloutView:
        """Returns a rollout with what is stored of it now. Raises NotFound, and TurnwireError if
        the store does not answer."""
        view = self._views.get(place_of(id))
        if view is not None:
            await self.refresh(view)
            return view
        view = await self._load(id)
        if view is None:
            await asyncio.sleep(AGAIN_S)
            view = await self._load(id)
        if view is None:
            raise _not_found(id)
        return self._views.setdefault(place_of(id), view)  # another request may have loaded it, too

    async def find_own(self, id: str, caller: Caller) -> RolloutView:
        """Returns a rollout of the caller's, for its trainer. Raises as `find`."""
        view = await self.find(id)
        if view.rollout.tenant != caller.tenant:
            raise _not_found(id)
        await self.end_at_limit(view)
        return view

    async def refresh(self, view: RolloutView, fresh_s: float = FRESH_S) -> None:
        """Reads what is new of a rollout, unless it was read `fresh_s` ago. Raises TurnwireError;
        NotFound if it is gone."""
        async with view.reading:
            now = asyncio.get_running_loop().time()
            if now - view.read_at < fresh_s and not view.is_stale:
                return
            view.is_stale = False
            id = view.rollout.id
            if not await self.store.has(id, view.first):
                self._views.pop(place_of(id), None)
                raise _not_found(id)
            async for number, record in self.store.read(id, view.read_to):
                view.apply(number, record)
            view.read_at = now

    async def end_at_limit(self, view: RolloutView, version: int | None = None) -> None:
        """Ends a rollout that has reached a limit. `version`: as for `reached_limit`. Raises
        TurnwireError."""
        state = reached_limit(view, time.time(), version)
        if state is not None:
            await self.set_state(view, state)

    async def end(self, view: RolloutView, status: Literal["finished", "aborted"]) -> None:
        """Ends a rollout that is open. Aborted ones lose their open turns. Returns when the turns
        that have ended are stored, or after `SETTLE_S`. Raises TurnwireError."""
        await self.refresh(view, 0.0)
        run = view.state.run
        if view.state.status == "open":
            state = replace(view.state, status=status, ended=time.time())
            await self.set_state(view, state, "aborted" if status == "aborted" else "")
        elif status == "aborted":  # the notice of an earlier call may be lost
            self.announce(view, "aborted", run)
        until = asyncio.get_running_loop().time() + SETTLE_S
        while self.has_running_turns(view) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
            await self.refresh(view, 0.0)

    async def restart(self, view: RolloutView) -> None:
        """Begins a rollout again, without its turns so far. Raises TurnwireError."""
        await self.refresh(view, 0.0)
        state = RolloutState(run=view.state.run + 1, began=time.time())
        await self.set_state(view, state, "restarted")

    async def set_state(
        self,
        view: RolloutView,
        state: RolloutState,
        cancels: Literal["", "aborted", "restarted"] = "",
    ) -> None:
        """Stores another state. `cancels`: why the open turns of the run so far are cancelled; "":
        they are not. Raises TurnwireError."""
        run = view.state.run
        await self.store.put(view.rollout.id, state)
        view.take(state)
        self.announce(view, cancels, run)
        await self.refresh(view, 0.0)

    async def reward(self, view: RolloutView, rewards: Rewards) -> None:
        """Stores rewards of the current run in place of earlier ones. Raises Invalid for an unknown
        turn, and TurnwireError."""
        await self.refresh(view, 0.0)
        rewards = replace(rewards, run=view.state.run)
        for turn in rewards.turns:
            if turn not in view.turns:
                raise Invalid(f"turns: the rollout has no turn {turn}", param="turns")
        await self.store.put(view.rollout.id, rewards)
        view.take(rewards)
        self.announce(view)
        await self.refresh(view, 0.0)

    async def delete(self, view: RolloutView) -> None:
        """Deletes a rollout and its turns. Raises TurnwireError."""
        await self.store.delete(view.rollout.id)
        self.announce(view, "deleted", view.state.run)
        self._views.pop(place_of(view.rollout.id), None)

    def announce(
        self,
        view: RolloutView,
        cancels: Literal["", "aborted", "restarted", "deleted"] = "",
        run: int = 0,
    ) -> None:
        """Reports a change to everyone who waits for it, here and in other frontends. `cancels`,
        `run`: as in `RolloutChanged`."""
        notice = RolloutChanged(place_of(view.rollout.id), cancels, run)
        self.peers.publish(notice)
        self.apply(notice)

    def apply(self, notice: RolloutChanged) -> None:
        """Applies a notice, of this or another frontend."""
        view = self._views.get(notice.place)
        if view is not None:
            view.receive_notice()
        if notice.cancels:
            self.on_cancel.call(notice)

    def has_running_turns(self, view: RolloutView) -> bool:
        """Returns whether turns of a rollout will still end, or are being stored."""
        alive = any(self.peers.is_alive(turn.frontend) for turn in view.open_turns)
        return alive or view.is_writing

    def missing_turns(self, view: RolloutView) -> list[MissingTurn]:
        """Returns the turns without tokens, those that run among them."""
        missing = []
        for id, turn in view.turns.items():
            if turn.why is not None:
                missing.append(MissingTurn(id, turn.why))
            elif turn.frontend or view.is_unstored(id):
                is_running = self.peers.is_alive(turn.frontend or self.peers.id)
                missing.append(MissingTurn(id, "running" if is_running else "lost"))
        return missing

    def turns_before(self, view: RolloutView, id: str) -> int:
        """Returns how many turns were decoded, or run and began before this one."""
        running = view.began_before(id).values()
        alive = [turn for turn in running if self.peers.is_alive(turn.frontend)]
        return view.decoded_turns + len(alive)

    async def _load(self, id: str) -> RolloutView | None:
        """Reads all of a rollout; None if there is none, or its first records were dropped."""
        view: RolloutView | None = None
        now = asyncio.get_running_loop().time()
        async for number, record in self.store.read(id):
            if view is not None:
                view.apply(number, record)
            elif isinstance(record, Rollout):
                view = RolloutView(record, number)
                view.read_at = now
            else:
                return None
        return view


def _size(view: RolloutView) -> int:
    return VIEW_BYTES + len(view.rollout.metadata)


def _not_found(id: str) -> NotFound:
    return NotFound(f"There is no rollout {id[:9]}… (any more).")
