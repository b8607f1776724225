"""Bodies: encodings, bombs, the limit on both sides of decoding, and what waits: bounded in bytes for
all callers together, for each, and for each connection."""

import asyncio
import gzip
import json
import random
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Invalid, TooLarge
from services.frontend.app import BODIES_HELD
from services.frontend.http import bodies
from services.frontend.http.bodies import DECODED_ON_LOOP_BYTES, THREAD_FROM_BYTES, decode
from services.frontend.http.held_bytes import HeldBytes
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, messages, user
from tests.kit.every import Cases, for_each
from tests.kit.frontend import Reply, Served, serving
from tests.kit.waiting import LIMIT_S

LIMIT = 64 * 1024
BODY = json.dumps(messages()).encode()


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-zlib.MAX_WBITS)


def zstd_of_unknown_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


def zstd_with_checksum(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(body)


def zstd_stream(body: bytes) -> bytes:
    """Two blocks, and no content size."""
    stream = zstandard.ZstdCompressor().compressobj()
    first = stream.compress(body[:9]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return first + stream.compress(body[9:]) + stream.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate without a header": raw_deflate,
    "zstd": zstandard.compress,
    "zstd of unknown size": zstd_of_unknown_size,
    "zstd with a checksum": zstd_with_checksum,
    "zstd as a stream": zstd_stream,
    "br": brotli.compress,
}
"""The first word is the encoding."""


async def send(
    served: Served, data: bytes | AsyncIterator[bytes], encoding: str = "identity"
) -> Reply:
    headers = {"content-encoding": encoding}
    return await served.send("POST", "/v1/messages", data=data, headers=headers)


async def test_encoded_body_is_decoded(cases: Cases) -> None:
    async with serving() as served:
        for name, encode in (ENCODERS | {"GZip": gzip.compress, "identity": bytes}).items():
            with cases.case(name):
                assert (await send(served, encode(BODY), name.split()[0])).status == 200
                assert served.gateway.conversations[-1].model == MODEL
        reply = await send(served, BODY, "gzip, zstd")
        assert reply.error[:2] == (400, "invalid_request_error")
        details = {"error_code": "request_body_encoding_unsupported"}
        assert reply.json["error"]["details"] == details


@for_each(ENCODERS)
def test_bomb_costs_no_more_than_the_limit(name: str) -> None:
    encoding, encode = name.split(maxsplit=1)[0], ENCODERS[name]
    with pytest.raises(TooLarge) as caught:
        decode(encode(b" " * 64 * LIMIT), encoding, LIMIT)
    assert caught.value.info.code == "request_body_too_large_after_decoding"
    assert decode(encode(b" " * LIMIT), encoding, LIMIT) == b" " * LIMIT


def test_gzip_body_may_have_several_members() -> None:
    noise = "".join(str(i * i) for i in range(5_000)).encode()
    members = [noise[at : at + 5_000] for at in range(0, len(noise), 5_000)]
    assert decode(b"".join(map(gzip.compress, members)), "gzip", LIMIT) == noise
    assert decode(gzip.compress(b"") + gzip.compress(noise), "gzip", LIMIT) == noise
    with pytest.raises(TooLarge):
        decode(gzip.compress(b" " * LIMIT) + gzip.compress(b" "), "gzip", LIMIT)


SKIPPABLE = bytes.fromhex("5a2a4d18 03000000") + b"abc"


def test_zstd_body_may_have_several_frames() -> None:
    frames = [
        *map(zstandard.compress, (b"a", b"", b"b" * 4_000)),
        SKIPPABLE,
        zstd_stream(b"c" * 40),
    ]
    plain = b"a" + b"b" * 4_000 + b"c" * 40
    assert decode(b"".join(frames), "zstd", LIMIT) == plain
    assert decode(b"".join(frames[::-1]), "zstd", LIMIT) == plain[::-1]
    with pytest.raises(TooLarge):
        decode(zstd_stream(b" " * LIMIT) + zstd_stream(b" "), "zstd", LIMIT)


BODIES = st.binary(max_size=300) | st.text("ab", max_size=300).map(str.encode)


@for_each(ENCODERS)
@given(st.data())
def test_truncated_body_is_refused(name: str, data: st.DataObject) -> None:
    """Unless it is cut between members or frames."""
    encoding, encode = name.split(maxsplit=1)[0], ENCODERS[name]
    most = 3 if encoding in ("gzip", "zstd") else 1
    pieces = [encode(piece) for piece in data.draw(st.lists(BODIES, min_size=1, max_size=most))]
    whole = {sum(map(len, pieces[:count])) for count in range(1, len(pieces))}
    body = b"".join(pieces)
    decode(body, encoding, LIMIT)
    for end in {*range(len(body))} - whole:
        with pytest.raises(Invalid, match=f"not valid {encoding}") as caught:
            decode(body[:end], encoding, LIMIT)
        assert caught.value.info.code == "request_body_encoding_invalid"


@for_each(ENCODERS)
def test_large_truncated_body_is_refused(name: str) -> None:
    """Of several blocks, each with a size of its own."""
    encoding, encode = name.split(maxsplit=1)[0], ENCODERS[name]
    draw = random.Random(5)
    body = encode(draw.randbytes(140_000) + b" " * 140_000)
    for end in (*draw.sample(range(len(body)), 20), *range(len(body) - 12, len(body))):
        with pytest.raises(Invalid, match=f"not valid {encoding}"):
            decode(body[:end], encoding, 1_000_000)


GZIPPED = gzip.compress(BODY)
LARGE_WINDOW = bytes.fromhex("28b52ffd") + b"\xe0" + b"\xff" * 8 + b"\x01\x00\x00"


WRONG: dict[str, tuple[bytes, str]] = {
    "gzip of nothing": (b"", "^The request body is not valid gzip: "),
    "gzip and more": (GZIPPED + b"junk", "^The request body is not valid gzip: "),
    "gzip with a cut member": (GZIPPED + GZIPPED[:-1], "^The request body is not valid gzip: "),
    "gzip of 5000 members": (gzip.compress(b"") * 5000, "members"),
    "deflate and more": (zlib.compress(BODY) + b"junk", "data after the end"),
    "zstd that is cut": (zstandard.compress(BODY)[:-9], "not valid zstd"),
    "zstd of nothing": (b"", "not valid zstd"),
    "zstd and more": (zstandard.compress(BODY) + b"junk", "not valid zstd"),
    "zstd of 5000 frames": (zstandard.compress(b"") * 5000, "more than 4096 frames"),
    "zstd with a large window": (LARGE_WINDOW, "not valid zstd"),
    "br that is cut": (brotli.compress(BODY)[:-9], "not valid br"),
}


@for_each(WRONG)
def test_wrong_data_is_refused(name: str) -> None:
    body, message = WRONG[name]
    with pytest.raises(Invalid, match=message):
        decode(body, name.split(maxsplit=1)[0], LIMIT)


async def test_body_over_the_limit_is_a_413() -> None:
    """With a length and without, and after decoding."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1024

    async with serving(config=FrontendConfig(max_body_bytes=16 * 1024)) as served:
        for data in (pieces(), b" " * 40 * 1024):
            assert (await send(served, data)).error[:2] == (413, "request_too_large"), type(data)
            assert (await served.ask()).status == 200
        bomb = await send(served, gzip.compress(b" " * 1024 * 1024), "gzip")
        assert bomb.status == 413
        details = {"error_code": "request_body_too_large_after_decoding"}
        assert bomb.json["error"]["details"] == details


async def test_no_more_is_held_than_the_limits_of_part_and_whole() -> None:
    """Random sizes, holding times and hang-ups: the limits hold, and all that may get room does."""
    draw = random.Random(7)
    whole = HeldBytes(1000)
    parts = [HeldBytes(600, within=whole) for _ in range(3)]
    most = 0.0
    entered = 0

    async def hold(part: HeldBytes, size: int) -> None:
        nonlocal most, entered
        async with part.wait_for(size):
            entered += 1
            most = max(most, whole.held, *(part.held / 0.6 for part in parts))
            for _ in range(draw.randrange(5)):
                await asyncio.sleep(0)

    tasks = [
        asyncio.create_task(hold(draw.choice(parts), draw.randrange(1, 600))) for _ in range(500)
    ]
    hung_up = tasks[::7]
    for task in hung_up:
        await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert 900 < most <= 1000
    assert entered >= len(tasks) - len(hung_up)
    assert [whole.held, *(part.held for part in parts)] == [0, 0, 0, 0]


async def test_large_bodies_wait_for_each_other_and_small_ones_do_not() -> None:
    """Each bomb counts as the largest body while it is unpacked."""
    body = json.dumps(messages(system=" " * (2 * bodies.UNCOUNTED_BYTES))).encode()
    headers = {"content-encoding": "gzip"}
    config = FrontendConfig(max_body_bytes=4 * bodies.UNCOUNTED_BYTES)
    async with serving(config=config) as served:
        held = served.callers.caller_of("").held
        assert held.limit == config.max_body_bytes * BODIES_HELD // 2
        async with held.wait_for(held.limit):
            waiting = [
                asyncio.create_task(served.send("POST", "/v1/messages", data=data, headers=extra))
                for data, extra in ((body, {}), (gzip.compress(body), headers))
            ]
            assert (await served.ask()).status == 200
            assert [task.done() for task in waiting] == [False, False]
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]
        assert held.held == 0


async def test_large_body_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is small while it is compressed."""
    limits: list[int] = []

    def watched(body: bytes, encoding: str, limit: int) -> bytes:
        if threading.current_thread() is threading.main_thread():
            assert len(body) < THREAD_FROM_BYTES
            limits.append(limit)
        return decode(body, encoding, limit)

    monkeypatch.setattr(bodies, "decode", watched)
    noise = random.Random(1).randbytes(THREAD_FROM_BYTES).hex()
    asked = json.dumps(messages(user(noise))).encode()
    padded = json.dumps(messages()).encode() + b" " * (4 * DECODED_ON_LOOP_BYTES)
    async with serving() as served:
        for data in (asked, padded):
            assert (await send(served, gzip.compress(data), "gzip")).status == 200
    assert limits == [DECODED_ON_LOOP_BYTES]


def test_gzip_of_many_members_is_decoded_in_linear_time() -> None:
    """One large member and a thousand small ones, which once copied the whole each time."""
    body = gzip.compress(b" " * (8 << 20)) + gzip.compress(b" ") * 1000
    begun = time.thread_time()
    assert len(decode(body, "gzip", 64 << 20)) == (8 << 20) + 1000
    assert time.thread_time() - begun < 1
