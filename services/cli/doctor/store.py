"""Checks whether the buckets take writes: writes a small value into each."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from schemas.errors import Unavailable
from services.cli.doctor.report import Finding
from services.cli.up.store_keeper import PROBES
from services.frontend.stored.shared import BUCKET
from services.runtime.nats.bus import Bus
from services.runtime.storage.write_watch import write_problem_at

TAKEN = "takes writes"
MISSING = "is missing"
FORBIDDEN = "not this user's (--nats-user frontend, parser)"


async def check_store(bus: Bus, *, makes_buckets: bool = False) -> Finding:
    """Checks all buckets. `makes_buckets`: a `turnwire up` makes them, so that a missing one is a
    failure, except for those that its settings leave out."""
    results: defaultdict[str, list[str]] = defaultdict(list)
    refusals: list[str] = []
    bus.on_refused.append(refusals.append)
    tried = await asyncio.gather(*(_try(bus, subject, refusals) for subject in PROBES.values()))
    for bucket, result in zip(PROBES, tried, strict=True):
        results[result].append(bucket)
    text = "; ".join(f"{', '.join(buckets)}: {result}" for result, buckets in results.items())
    cannot_make = makes_buckets and BUCKET in results.get(MISSING, ())
    if results.keys() <= {TAKEN, MISSING, FORBIDDEN} and not cannot_make:
        return Finding("ok" if results.keys() == {TAKEN} else "note", "store", text)
    remedy = "Is the disk of nats-server full, or was it? Make room, then restart it"
    return Finding("fail", "store", f"{text}. {remedy}")


async def _try(bus: Bus, subject: str, refusals: Sequence[str]) -> str:
    """Writes into a bucket. `refusals`: what the server does not permit, in its words, so far."""
    try:
        problem = await write_problem_at(bus, subject)
    except Unavailable:
        return MISSING
    if any(f'"{subject.lower()}"' in refusal.lower() for refusal in refusals):
        return FORBIDDEN
    return problem or TAKEN
