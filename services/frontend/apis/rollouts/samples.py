"""Sends the samples of a rollout as lines of JSON: all of them, or each turn as it ends."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from aiohttp import web
from msgspec import Raw
from msgspec.structs import replace

from schemas.errors import NotFound, TurnwireError
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.formats import trl_row
from services.rollouts.sample_lines import (
    LastLine,
    MissingTurn,
    RolloutSample,
    Sample,
    sample_of_rollout,
)
from services.rollouts.samples import Sampler
from services.rollouts.stored_turns import StoredTurn, StoredTurnReader

CONTENT_TYPE = "application/jsonl"
POLL_S = 1.0
"""How long a follower waits for a notice before it looks itself: a notice may be lost."""
FORMATS = ("", "trl")
"""The forms of samples; "": their own."""

_encode = msgspec.json.Encoder().encode


class SampleSender:
    """Sends the samples of one rollout as the response to one request."""

    def __init__(self, http: web.Request, rollouts: Rollouts, view: RolloutView, url: str) -> None:
        """`url`: the rollout's address."""
        self._http = http
        self._rollouts = rollouts
        self._view = view
        self._run = view.state.run
        self._image_url = f"{url}/images/"
        self._turns = StoredTurnReader(self._run)
        self._sampler = Sampler(one_run=True)
        self._sent: set[str] = set()
        """The turns that are in samples."""
        self._read_to = 0
        """The number of the last record that was read."""
        self._response = web.StreamResponse(headers={"content-type": CONTENT_TYPE})

    async def send_all(self, format: str) -> web.StreamResponse:
        """Sends each sample as it is now, in one of the `FORMATS`, and in their own form a last
        line for the rollout. Raises TurnwireError before the first byte."""
        await self._rollouts.refresh(self._view, 0.0)
        last = self._last_line()
        records = await self._read()
        # Joining a hundred turns of 100,000 tokens takes 0.2 s.
        lines = await asyncio.to_thread(self._lines, records, format)

        await self._response.prepare(self._http)
        for line in lines:
            await self._response.write(line)
        if not format:
            await self._response.write(self._end(last))
        await self._response.write_eof()
        return self._response

    async def follow(self) -> web.StreamResponse:
        """Sends what each turn adds to its sample, when it has ended; after the end of the rollout,
        its last line. The response has no last line if the rollout is deleted or restarted."""
        await self._response.prepare(self._http)
        while True:
            changed = self._view.changed
            try:
                await self._rollouts.refresh(self._view, 0.0)
                await self._rollouts.end_at_limit(self._view)
                if self._view.state.run != self._run:
                    break
                has_ended = self._has_ended()
                last = self._last_line()
                records = await self._read()
            except NotFound:
                break
            except TurnwireError:  # the store is away: the follower waits for it
                await _wait_for_change(changed)
                continue
            for line in await asyncio.to_thread(self._new_lines, records):
                await self._response.write(line)
            if has_ended:
                await self._response.write(self._end(last))
                break
            await _wait_for_change(changed)
        await self._response.write_eof()
        return self._response

    def _has_ended(self) -> bool:
        """Whether no turn of this run will end any more."""
        is_over = self._view.state.status != "open"
        return is_over and not self._rollouts.has_running_turns(self._view)

    async def _read(self) -> list[StoredTurn]:
        """Reads the turns that were stored since the last call."""
        store = self._rollouts.store
        new = [pair async for pair in store.read(self._view.rollout.id, self._read_to)]
        if new:
            self._read_to = new[-1][0]
        return [record for _, record in new if isinstance(record, StoredTurn)]

    def _lines(self, records: Sequence[StoredTurn], format: str) -> list[bytes]:
        """The lines of all samples. Runs on a thread."""
        for turn in self._turns.read(records):
            self._sent.add(turn.id)
            self._sampler.add(turn)
        samples = map(self._of_rollout, self._sampler.close())
        if format == "trl":
            return [_line(trl_row(sample)) for sample in samples]
        return [_line(sample) for sample in samples]

    def _new_lines(self, records: Sequence[StoredTurn]) -> list[bytes]:
        """The lines of a follower for these turns. Runs on a thread."""
        lines = []
        for turn in self._turns.read(records):
            self._sent.add(turn.id)
            lines.append(_line(self._of_rollout(self._sampler.follow(turn))))
        return lines

    def _of_rollout(self, sample: Sample) -> RolloutSample:
        return sample_of_rollout(sample, self._view.rollout, self._view.rewards, self._image_url)

    def _last_line(self) -> LastLine:
        """The last line as of now: turns that are stored later may be in samples all the same."""
        view = self._view
        return LastLine(
            view.rollout.id,
            view.state.status,
            view.rollout.group,
            view.rewards.reward,
            Raw(view.rollout.metadata),
            self._rollouts.missing_turns(view),
        )

    def _end(self, last: LastLine) -> bytes:
        """The last line without the turns that are in samples."""
        unreadable = [MissingTurn(turn, "lost") for turn in self._turns.unreadable]
        missing = [turn for turn in last.missing if turn.turn not in self._sent]
        return _line(replace(last, missing=[*missing, *unreadable]))


async def _wait_for_change(changed: asyncio.Event) -> None:
    """Returns when there is a notice, or after `POLL_S`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await changed.wait()


def _line(value: object) -> bytes:
    return _encode(value) + b"\n"
