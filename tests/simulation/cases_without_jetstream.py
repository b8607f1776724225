"""Cases on a server without JetStream."""

import nats.errors
import nats.js.errors
import pytest
import structlog

from schemas.errors import Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.simulation.nats_places import Place

CONFIG = BucketConfig(name="none", description="", ttl_s=60, max_bytes=1 << 20, max_value_bytes=100)


async def server_without_jetstream_has_no_responders(at: Place) -> None:
    assert not (await at.wire()).info.get("jetstream")
    client = await at.client()
    for subject in (
        "$JS.API.INFO",
        "$JS.API.STREAM.INFO.KV_none",
        "$JS.API.DIRECT.GET.KV_none",
        "$KV.none.k",
    ):
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request(subject, b"", timeout=30)
    with pytest.raises(nats.js.errors.ServiceUnavailableError):
        await client.jetstream().stream_info("KV_none")


async def bucket_without_jetstream_keeps_nothing(at: Place) -> None:
    bus = await at.bus()
    bucket = Bucket(
        bus.bus, CONFIG, structlog.wrap_logger(structlog.PrintLogger(), processors=[bus.log])
    )
    await bucket.put("k", b"v")
    assert await bucket.get("k") is None
    assert [entry["event"] for entry in bus.log.entries] == ["kv.missing"]
    with pytest.raises(Unavailable, match="the server has no JetStream"):
        await create_bucket(bus.bus, CONFIG)
