"""Bodies: encodings, bombs, and the limit on both sides of decoding."""

import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping

import brotli
import pytest
import zstandard
from aiohttp import ClientSession

from schemas.errors import Invalid, TooLarge
from services.frontend.apis.messages.request import Messages, MessagesRequest
from services.frontend.http.bodies import THREAD_FROM_BYTES, decode
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, serving

LIMIT = 256 * 1024
ASK = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(ASK).encode()


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-zlib.MAX_WBITS)


def zstd_of_unknown_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


ENCODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstandard.compress),
    ("zstd", zstd_of_unknown_size),
    ("br", brotli.compress),
    ("identity", bytes),
]


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
async def test_encoded_body_is_decoded(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.post(
            "/v1/messages", data=encode(BODY), headers={"content-encoding": encoding}
        )
        assert response.status == 200
    assert served.gateway.turns[0].conversation.model == MODEL


async def test_large_encoded_body_is_decoded_in_a_thread() -> None:
    noise = zlib.compress(bytes(range(256)) * 1, 0).hex() + "".join(
        str(i * i) for i in range(30_000)
    )
    body = zstandard.compress(json.dumps({**ASK, "system": noise}).encode(), level=1)
    assert len(body) > THREAD_FROM_BYTES
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", data=body, headers={"content-encoding": "zstd"})
        assert response.status == 200
    assert served.gateway.turns[0].conversation.system[0].text == noise


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_of_many_pieces_is_whole(chunked: bool) -> None:
    """The body is larger than a connection's buffer (2 x 256 KiB), with a length and without."""
    noise = "".join(str(i * i) for i in range(300_000))
    body = json.dumps({**ASK, "system": noise}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 100_000):
            yield body[at : at + 100_000]

    async with serving() as served, ClientSession(served.url) as http:
        for _ in range(2):
            response = await http.post("/v1/messages", data=pieces() if chunked else body)
            assert response.status == 200
    assert [turn.conversation.system[0].text == noise for turn in served.gateway.turns] == [
        True,
        True,
    ]


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS[:-1])
def test_bomb_costs_no_more_than_the_limit(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(b" " * 64 * LIMIT)
    with pytest.raises(TooLarge) as caught:
        decode(bomb, encoding.lower(), LIMIT)
    assert caught.value.info.code == "request_body_too_large_after_decoding"
    assert decode(encode(b" " * LIMIT), encoding.lower(), LIMIT) == b" " * LIMIT


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
@pytest.mark.parametrize(
    ("encoding", "encode"), [pair for pair in ENCODERS[:-1] if pair[1] is not zstd_of_unknown_size]
)
def test_broken_body_is_refused(
    encoding: str, encode: Callable[[bytes], bytes], damage: str
) -> None:
    whole = encode(BODY)
    body = {"cut": whole[: len(whole) // 2], "garbage": b"\x9cgarbage", "empty": b""}[damage]
    with pytest.raises(Invalid) as caught:
        decode(body, encoding.lower(), LIMIT)
    assert caught.value.info.code == "request_body_encoding_invalid"


def test_gzip_body_may_have_several_members() -> None:
    noise = b"".join(str(i * i).encode() for i in range(30_000))
    members = [noise[at : at + 20_000] for at in range(0, len(noise), 20_000)]
    assert decode(b"".join(map(gzip.compress, members)), "gzip", LIMIT) == noise
    assert decode(gzip.compress(b"") + gzip.compress(noise), "gzip", LIMIT) == noise
    with pytest.raises(TooLarge):
        decode(gzip.compress(b" " * LIMIT) + gzip.compress(b" "), "gzip", LIMIT)


@pytest.mark.parametrize(
    "body", [gzip.compress(BODY) + b"junk", gzip.compress(BODY) + gzip.compress(BODY)[:-1]]
)
def test_data_after_a_gzip_member_must_be_a_member(body: bytes) -> None:
    with pytest.raises(Invalid, match=r"^The request body is not valid gzip: "):
        decode(body, "gzip", LIMIT)


def test_data_after_a_deflate_body_is_refused() -> None:
    with pytest.raises(Invalid, match="data after the end"):
        decode(zlib.compress(BODY) + b"junk", "deflate", LIMIT)


def test_gzip_body_of_countless_members_is_refused() -> None:
    with pytest.raises(Invalid, match="members"):
        decode(gzip.compress(b"") * 5000, "gzip", LIMIT)


async def test_unknown_encoding_is_a_400_with_the_sdks_code() -> None:
    async with serving() as served, ClientSession(served.url) as http:
        for encoding in ("compress", "gzip, zstd", "nonsense"):
            response = await http.post(
                "/v1/messages", data=BODY, headers={"content-encoding": encoding}
            )
            assert response.status == 400
            error = (await response.json())["error"]
            assert error["type"] == "invalid_request_error"
            assert error["details"] == {"error_code": "request_body_encoding_unsupported"}


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit_is_a_413(chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1024

    config = FrontendConfig(max_body_bytes=16 * 1024)
    async with serving(config=config) as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", data=pieces() if chunked else b" " * 40 * 1024)
        assert response.status == 413
        assert (await response.json())["error"]["type"] == "request_too_large"
        assert (await http.post("/v1/messages", json=ASK)).status == 200


async def test_decoded_body_over_the_limit_is_a_413() -> None:
    config = FrontendConfig(max_body_bytes=16 * 1024)
    async with serving(config=config) as served, ClientSession(served.url) as http:
        bomb = gzip.compress(b" " * 1024 * 1024)
        response = await http.post("/v1/messages", data=bomb, headers={"content-encoding": "gzip"})
        assert response.status == 413
        details = (await response.json())["error"]["details"]
        assert details == {"error_code": "request_body_too_large_after_decoding"}


async def test_large_body_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 messages keep the frontend's other streams waiting for no time."""
    threads: list[bool] = []
    parse = Messages.parse

    def watched(self: Messages, body: bytes, headers: Mapping[str, str]) -> MessagesRequest:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(self, body, headers)

    monkeypatch.setattr(Messages, "parse", watched)
    long = {**ASK, "messages": [{"role": "user", "content": "x" * 100}] * 6000}
    async with serving() as served, ClientSession(served.url) as http:
        for body in (ASK, long):
            assert (await http.post("/v1/messages", json=body)).status == 200
        refused = await http.post("/v1/messages", json={**long, "max_tokens": -1})
        assert (await refused.json())["error"][
            "message"
        ] == "max_tokens: Input should be greater than or equal to 0"
    assert threads == [True, False, False]
