"""Bodies: encodings, bombs, and the limit on both sides of decoding."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable

import brotli
import pytest
import zstandard

from schemas.errors import Invalid, TooLarge
from services.frontend.http.bodies import decode
from services.runtime.config import FrontendConfig
from tests.kit.every import Cases, for_rows
from tests.kit.frontend import ASK, MODEL, Reply, Served, serving

LIMIT = 64 * 1024
BODY = json.dumps(ASK).encode()


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-zlib.MAX_WBITS)


def zstd_of_unknown_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


ENCODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstandard.compress),
    ("zstd", zstd_of_unknown_size),
    ("br", brotli.compress),
]


async def send(
    served: Served, data: bytes | AsyncIterator[bytes], encoding: str = "identity"
) -> Reply:
    headers = {"content-encoding": encoding}
    return await served.send("POST", "/v1/messages", data=data, headers=headers)


async def test_encoded_body_is_decoded() -> None:
    async with serving() as served:
        for encoding, encode in [*ENCODERS, ("GZip", gzip.compress), ("identity", bytes)]:
            assert (await send(served, encode(BODY), encoding)).status == 200, encoding
            assert served.gateway.conversations[-1].model == MODEL
        reply = await send(served, BODY, "gzip, zstd")
        assert reply.error[:2] == (400, "invalid_request_error")
        details = {"error_code": "request_body_encoding_unsupported"}
        assert reply.json["error"]["details"] == details


@for_rows(ENCODERS)
def test_bomb_costs_no_more_than_the_limit(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    with pytest.raises(TooLarge) as caught:
        decode(encode(b" " * 64 * LIMIT), encoding, LIMIT)
    assert caught.value.info.code == "request_body_too_large_after_decoding"
    assert decode(encode(b" " * LIMIT), encoding, LIMIT) == b" " * LIMIT


def test_broken_body_is_refused(cases: Cases) -> None:
    for encoding, encode in ENCODERS:
        if encode is zstd_of_unknown_size:
            continue
        whole = encode(BODY)
        for damage in (whole[: len(whole) // 2], b"\x9cgarbage", b""):
            with cases.case(encoding, damage=damage):
                with pytest.raises(Invalid) as caught:
                    decode(damage, encoding, LIMIT)
                assert caught.value.info.code == "request_body_encoding_invalid"


def test_gzip_body_may_have_several_members() -> None:
    noise = "".join(str(i * i) for i in range(5_000)).encode()
    members = [noise[at : at + 5_000] for at in range(0, len(noise), 5_000)]
    assert decode(b"".join(map(gzip.compress, members)), "gzip", LIMIT) == noise
    assert decode(gzip.compress(b"") + gzip.compress(noise), "gzip", LIMIT) == noise
    with pytest.raises(TooLarge):
        decode(gzip.compress(b" " * LIMIT) + gzip.compress(b" "), "gzip", LIMIT)


GZIPPED = gzip.compress(BODY)
LARGE_WINDOW = bytes.fromhex("28b52ffd") + b"\xe0" + b"\xff" * 8 + b"\x01\x00\x00"


@for_rows(
    [
        (GZIPPED + b"junk", "gzip", "^The request body is not valid gzip: "),
        (GZIPPED + GZIPPED[:-1], "gzip", "^The request body is not valid gzip: "),
        (gzip.compress(b"") * 5000, "gzip", "members"),
        (zlib.compress(BODY) + b"junk", "deflate", "data after the end"),
        (LARGE_WINDOW, "zstd", "not valid zstd"),
    ]
)
def test_wrong_data_is_refused(body: bytes, encoding: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        decode(body, encoding, LIMIT)


async def test_body_over_the_limit_is_a_413() -> None:
    """With a length and without, and after decoding."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1024

    async with serving(config=FrontendConfig(max_body_bytes=16 * 1024)) as served:
        for data in (pieces(), b" " * 40 * 1024):
            assert (await send(served, data)).error[:2] == (413, "request_too_large")
            assert (await served.ask()).status == 200
        bomb = await send(served, gzip.compress(b" " * 1024 * 1024), "gzip")
        assert bomb.status == 413
        details = {"error_code": "request_body_too_large_after_decoding"}
        assert bomb.json["error"]["details"] == details
