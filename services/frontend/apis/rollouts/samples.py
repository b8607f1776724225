"""Sends the samples of a rollout as lines of JSON: all of them, or each turn as it ends."""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from schemas.errors import NotFound, TurnwireError
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.formats import TrlRow, trl_row
from services.rollouts.sample_lines import (
    MissingTurn,
    RolloutSample,
    Sample,
    SampleUrls,
    line_after,
    sample_of_rollout,
)
from services.rollouts.samples import Sampler
from services.rollouts.stored_turns import FollowedRun, StoredRun, StoredTurn

CONTENT_TYPE = "application/jsonl"
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
        self._urls = SampleUrls(f"{url}/images/", "")
        self._sampler = Sampler(one_run=True)
        self._read_to = 0
        """The number of the last record that was read."""
        self._sent: set[str] = set()
        """The turns that are in samples."""
        self._response = web.StreamResponse(headers={"content-type": CONTENT_TYPE})

    async def send_all(self, format: str) -> web.StreamResponse:
        """Sends each sample as it is now, in one of the `FORMATS`. Raises TurnwireError before the
        first byte."""
        await self._rollouts.read_again(self._view)
        run = StoredRun(await self._read(), self._run)
        for turn in run.turns():
            self._sampler.add(turn)
            self._sent.add(turn.id)
        missing = self._missing(run.unreadable)

        await self._response.prepare(self._http)
        for sample in self._sampler.close():
            line = self._line(sample, missing)
            await self._write(trl_row(line) if format == "trl" else line)
        await self._response.write_eof()
        return self._response

    async def follow(self) -> web.StreamResponse:
        """Sends what each turn adds to its sample, when it has ended; after the end of the rollout,
        a line without ids for each sample, which says what is missing."""
        run = FollowedRun(self._run)
        await self._response.prepare(self._http)
        while True:
            news = self._rollouts.news_of(self._view.rollout.id)
            try:
                await self._rollouts.refresh(self._view)
                await self._rollouts.end_at_limit(self._view)
                has_ended = self._has_ended()
                records = await self._read()
            except NotFound:  # it was deleted
                break
            except TurnwireError:  # the store is away: the follower waits for it
                has_ended = False
                records = []
            for turn in run.turns(records):
                self._sent.add(turn.id)
                await self._write(self._line(self._sampler.follow(turn)))
            if has_ended:
                break
            await self._rollouts.wait_for_news(news)

        missing = self._missing(run.unreadable)
        for sample in self._sampler.close():
            await self._write(self._line(line_after(sample), missing))
        await self._response.write_eof()
        return self._response

    def _has_ended(self) -> bool:
        """Whether no turn of this run will end any more."""
        state = self._view.state
        if state.run != self._run:
            return True
        return state.status != "open" and not self._rollouts.has_running_turns(self._view)

    async def _read(self) -> list[StoredTurn]:
        """Reads the turns that were stored since the last call."""
        store = self._rollouts.store
        new = [pair async for pair in store.read(self._view.rollout.id, self._read_to)]
        if new:
            self._read_to = new[-1][0]
        return [record for _, record in new if isinstance(record, StoredTurn)]

    def _missing(self, unreadable: Sequence[str]) -> list[MissingTurn]:
        """The turns that are in no sample. `unreadable`: those with a lost base."""
        missing = self._rollouts.missing_turns(self._view)
        missing += [MissingTurn(turn, "lost") for turn in unreadable]
        return [turn for turn in missing if turn.turn not in self._sent]

    def _line(self, sample: Sample, missing: Sequence[MissingTurn] = ()) -> RolloutSample:
        view = self._view
        return sample_of_rollout(sample, view.rollout, view.rewards, missing, self._urls)

    async def _write(self, line: RolloutSample | TrlRow) -> None:
        await self._response.write(_encode(line) + b"\n")
