"""Sends the samples of a rollout as lines of JSON."""

import msgspec
from aiohttp import web

from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.samples import Sampler
from services.rollouts.stored_turns import FailedTurn, OpenTurn, StoredRun, StoredTurn

LINES = "application/jsonl"
_encode = msgspec.json.Encoder().encode


async def send_samples(
    http: web.Request, rollouts: Rollouts, view: RolloutView
) -> web.StreamResponse:
    """Sends all samples of a rollout, each as a line. Raises TurnwireError before the first."""
    records = [
        record
        for record in await rollouts.records(view)
        if isinstance(record, OpenTurn | StoredTurn | FailedTurn)
    ]
    run = StoredRun(records, view.state.run)
    sampler = Sampler()
    for turn in run.turns():
        sampler.add(turn)
    response = web.StreamResponse(headers={"content-type": LINES})
    await response.prepare(http)
    for sample in sampler.close():
        await response.write(_encode(sample) + b"\n")
    await response.write_eof()
    return response
