"""`turnwire buckets`: creates the buckets that services share, because services may not create
them.

With `--every-s` it creates them again when the server has lost them.
"""

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from schemas.errors import EngineFailed, TimedOut, TurnwireError, Unavailable
from services.cli.observer import observing
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run
from services.frontend.rollouts.store import rollout_bucket
from services.frontend.stored.shared import bucket_config
from services.images.store import image_bucket
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig
from services.runtime.config.stores import BucketsConfig
from services.runtime.nats.bus import Bus
from services.runtime.storage.kv import BucketConfig, create_bucket, ledger_bucket

RETRY_S = 0.5
COPIES = (5, 3, 1)
"""Numbers of copies to try. Half of an even number is not a majority: a further server would not
help."""


def make(sources: Sources, /) -> int:
    """Creates the buckets in JetStream, or updates them to these settings.

    To be run before the services start, as the bus's user `setup`; it may run again at any time. It
    waits `connect_timeout_s` for the server.
    """
    config = sources.load(BucketsConfig).config
    print(*run(make_buckets(config)), sep="\n", flush=True)
    if config.every_s is not None:
        run(keep_buckets(config, config.every_s))
    return 0


COMMAND = Command(
    make, (BusConfig, BucketsConfig), essential=(*BUS_SETTINGS, "bucket_replicas", "every_s")
)


async def make_buckets(config: BucketsConfig) -> list[str]:
    """Makes all buckets; returns a description of each. Raises TurnwireError for the first that
    cannot be made."""
    made = []
    async with observing(config.bus, "buckets", user="setup", log_level="error") as bus:
        for choices in _buckets(config):
            made.append(await _make_largest(bus, choices, config.bus.connect_timeout_s))
    return [_describe(bucket) for bucket in made]


def _describe(bucket: BucketConfig) -> str:
    copies = "copy" if bucket.replicas == 1 else "copies"
    return (
        f"{bucket.name}: {bucket.max_bytes:,} bytes, entries expire after {bucket.ttl_s:g} s, "
        f"{bucket.replicas} {copies}"
    )


async def keep_buckets(config: BucketsConfig, every_s: float) -> None:
    """Makes the buckets that do not exist, every `every_s`, until it is cancelled. Raises
    Unavailable if there is no server at the start."""
    async with observing(config.bus, "buckets", user="setup", log_level="error") as bus:
        while True:
            await asyncio.sleep(every_s)
            for choices in _buckets(config):
                # The server may be away, or have a reason that the first attempt reported.
                with suppress(TurnwireError):
                    await _make_largest(bus, choices, 0.0)


def _buckets(config: BucketsConfig) -> list[list[BucketConfig]]:
    """Each bucket with the numbers of its copies, the largest first."""
    buckets = [bucket_config(config), image_bucket(config)]
    if config.ledger_store_mb:
        buckets.insert(0, ledger_bucket(config))
    if config.rollout_store_mb:
        buckets.append(rollout_bucket(config))
    copies = COPIES if config.bucket_replicas is None else (config.bucket_replicas,)
    return [[replace(bucket, replicas=number) for number in copies] for bucket in buckets]


async def _make_largest(bus: Bus, choices: list[BucketConfig], patience_s: float) -> BucketConfig:
    """Makes a bucket with the most copies for which the cluster has servers: it refuses more.
    Returns what was made."""
    for bucket in choices[:-1]:
        with suppress(EngineFailed):
            await _make(bus, bucket, patience_s)
            return bucket
    await _make(bus, choices[-1], patience_s)
    return choices[-1]


async def _make(bus: Bus, bucket: BucketConfig, patience_s: float) -> None:
    """Makes a bucket. Waits if JetStream is still starting."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return await create_bucket(bus, bucket)
        except Unavailable as error:
            if loop.time() > deadline:
                raise Unavailable(f"bucket {bucket.name}: {error}") from error
        except TimedOut as error:
            raise TimedOut(
                f"bucket {bucket.name}: {error}; may this user create streams?"
            ) from error
        await asyncio.sleep(RETRY_S)
