"""Checks whether the buckets take writes: writes a small value into each."""

import asyncio
from collections import defaultdict

from schemas.errors import TurnwireError, Unavailable
from services.cli.doctor.report import Finding
from services.cli.up.store_keeper import PROBES
from services.frontend.stored.store import BUCKET
from services.runtime.bus import Bus
from services.runtime.storage.write_watch import TIMEOUT_S, write_problem

TAKEN = "takes writes"
MISSING = "is missing"
FORBIDDEN = "not this user's (--nats-user frontend, parser)"


async def check(bus: Bus, *, makes_buckets: bool = False) -> Finding:
    """Checks all buckets. `makes_buckets`: a `turnwire up` makes them, so that a missing one is a
    failure, except for those that its settings leave out."""
    results: defaultdict[str, list[str]] = defaultdict(list)
    tried = await asyncio.gather(*(_try(bus, subject) for subject in PROBES.values()))
    for bucket, result in zip(PROBES, tried, strict=True):
        results[result].append(bucket)
    text = "; ".join(f"{', '.join(buckets)}: {result}" for result, buckets in results.items())
    cannot_make = makes_buckets and BUCKET in results.get(MISSING, ())
    if results.keys() <= {TAKEN, MISSING, FORBIDDEN} and not cannot_make:
        return Finding("ok" if results.keys() == {TAKEN} else "note", "store", text)
    remedy = "Is the disk of nats-server full, or was it? Make room, then restart it"
    return Finding("fail", "store", f"{text}. {remedy}")


async def _try(bus: Bus, subject: str) -> str:
    try:
        return write_problem(await bus.request(subject, b"probe", TIMEOUT_S)) or TAKEN
    except Unavailable:
        return MISSING
    except TurnwireError as error:
        if "permissions violation" in bus.last_error.lower():
            return FORBIDDEN
        return write_problem(error) or str(error)
