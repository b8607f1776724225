"""An attacker's bytes: two readings of one request, broken framing, names that reach headers, logs
and subjects."""

import json
from typing import Any

import pytest

from services.frontend.http.bodies import decode
from tests.frontend.http.raw_http import ASK, BODY, answer_to, answers_to, chunk, get, post
from tests.kit.frontend import MODEL, serving

BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": ASK,
    "/v1/chat/completions": ASK,
    "/v1/completions": {"model": MODEL, "max_tokens": 9, "prompt": "x"},
    "/v1/responses": {"model": MODEL, "max_output_tokens": 9, "input": "x"},
}
CHUNKED = "Transfer-Encoding: chunked"
HIDDEN = get("/v1/models")
END = b"0\r\n\r\n"

REFUSED: dict[str, bytes] = {
    "length and chunks": post(END + HIDDEN, CHUNKED),
    "chunks and length": post(END, CHUNKED, "Content-Length: 5", sized=False) + HIDDEN,
    "two equal lengths": post(BODY, f"Content-Length: {len(BODY)}"),
    "two lengths": post(BODY, "Content-Length: 3"),
    "a list of lengths": post(b"abc", "Content-Length: 3, 3", sized=False),
    "signed length": post(b"abc", "Content-Length: +3", sized=False),
    "hexadecimal length": post(b"abc", "Content-Length: 0x3", sized=False),
    "length with a line": post(b"a" * 10, "Content-Length: 1_0", sized=False),
    "endless length": post(b"", "Content-Length: 99999999999999999999999", sized=False),
    "negative length": post(b"", "Content-Length: -5", sized=False),
    "empty length": post(b"", "Content-Length: ", sized=False),
    "unknown coding": post(END, "Transfer-Encoding: xchunked", sized=False),
    "chunked twice": post(END, CHUNKED, CHUNKED, sized=False),
    "chunked not last": post(END, "Transfer-Encoding: chunked, identity", sized=False),
    "space before the colon": post(END, "Transfer-Encoding : chunked", sized=False),
    "control before the coding": post(END, "Transfer-Encoding: \x0bchunked", sized=False),
    "length in a trailer": post(
        chunk(BODY) + b"0\r\nContent-Length: 5\r\n\r\n", CHUNKED, sized=False
    ),
    "bare LF": post().replace(b"\r\n", b"\n"),
    "bare LF in the head": get().replace(b"localhost\r\n", b"localhost\nX: y\r\n"),
    "bare CR in the head": get().replace(b"localhost\r\n", b"localhost\rX: y\r\n"),
    "bare LF in chunks": post(b"3\nabc\n0\n\n", CHUNKED, sized=False),
    "bare LF in an extension": post(chunk(BODY, b";a=\nb") + END, CHUNKED, sized=False),
    "no end of a chunk": post(b"3\r\nabcXX0\r\n\r\n", CHUNKED, sized=False),
    "endless chunk": post(b"fffffffffffffffff\r\n", CHUNKED, sized=False),
    "negative chunk": post(b"-1\r\nabc", CHUNKED, sized=False),
    "prefixed chunk": post(b"0x3\r\nabc\r\n0\r\n\r\n", CHUNKED, sized=False),
    "folded header": get("/version", "X: a\r\n b"),
    "folded first header": get().replace(b"Host", b" Host"),
    "two hosts": get("/version", "Host: other"),
    "no host": b"GET /version HTTP/1.1\r\n\r\n",
    "null in a header": get("/version", "X: a\0b"),
    "null in the URL": get("/version\0"),
    "escape in a header": get("/version", "User-Agent: \x1b[31m"),
    "bytes in the URL": get("/v1/models/\xff"),
    "no host in the URL": get("http:///version"),
    "no port in the URL": get("http://localhost:99999999/version"),
    "no address in the URL": get("http://[zz]/version"),
    "HTTP/1.2": get(version="1.2"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method without end": b"A" * 40_000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
async def test_ambiguous_request_is_refused(request_: bytes) -> None:
    """One 400, then the connection is closed: nothing after it is read as a request."""
    async with serving() as served:
        answers = await answers_to(served.port, request_ + HIDDEN)
        assert [answer.status for answer in answers] == [400]
        assert answers[0].message.startswith("Malformed HTTP request: ")
    assert served.gateway.turns == []


async def test_pipelined_requests_get_their_own_answers() -> None:
    bad = post(b'{"model":', path="/v1/chat/completions")
    parts = [
        get(),
        post(),
        bad,
        post(HIDDEN, path="/nothing"),
        get("/version", "Content-Length: 5") + b"abcde",
        get(),
    ]
    async with serving() as served:
        answers = await answers_to(served.port, b"".join(parts), len(parts))
        assert [answer.status for answer in answers] == [200, 200, 400, 404, 200, 200]
        many = await answers_to(served.port, get() * 500, 500)
        assert {answer.status for answer in many} == {200}
        assert len({answer.headers["request-id"] for answer in [*answers, *many]}) == 506


async def test_unread_body_is_not_parsed_as_a_request() -> None:
    oversized = post(b"", "Content-Length: 70000000", sized=False)
    async with serving() as served:
        assert (await answer_to(served.port, oversized + HIDDEN)).status == 413
        refused = await answers_to(served.port, post(HIDDEN, "Connection: close", path="/nothing"))
        assert [answer.status for answer in refused] == [404]


async def test_long_chunk_extensions_and_trailers_are_accepted() -> None:
    async with serving() as served:
        for body in (
            chunk(BODY, b";a=" + b"x" * 2_000_000) + END,
            b"".join(chunk(bytes([byte])) for byte in BODY) + END,
            chunk(BODY) + b"0\r\nX-Api-Key: other\r\nHost: other\r\n\r\n",
        ):
            answer = await answer_to(served.port, post(body, CHUNKED, sized=False))
            assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    "form", ["http://localhost{path}", "http://evil.example{path}", "//evil.example{path}"]
)
async def test_absolute_url_is_served_here(form: str) -> None:
    async with serving() as served:
        answer = await answer_to(served.port, get(form.format(path="/version")))
        assert answer.status == (404 if form.startswith("//") else 200)
        assert (
            await answer_to(served.port, get("http://localhost/version", host="evil.example"))
        ).status == 403
        climbing = get("http://evil.example/live/../v1/models", host="evil.example")
        assert (await answer_to(served.port, climbing)).status == 403


NAMES = [
    "a%0d%0aX-Evil:%201",
    "..%2f..%2fetc%2fpasswd",
    "../../etc/passwd",
    "%2a",
    "%3e",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "%zz",
    "%1b[31m",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "path", ["/v1/models/", "/v1/responses/", "/v1/chat/completions/", "/v1/nothing/"]
)
async def test_name_in_a_path_stays_a_name(path: str, name: str) -> None:
    async with serving() as served:
        answer = await answer_to(served.port, get(path + name))
        assert answer.status == 404
        assert "x-evil" not in answer.headers
        json.loads(answer.body)
    assert all("\n" not in json.dumps(line, default=str) for line in served.lines)


@pytest.mark.parametrize(
    "name", ["a\r\nX-Evil: 1\r\n\r\nbody", "*.>", "\x00", "\x1b[31m", "\ud800", "a" * 100_000]
)
@pytest.mark.parametrize("path", BODIES)
async def test_model_name_stays_a_name(path: str, name: str) -> None:
    body = json.dumps({**BODIES[path], "model": name}).encode()
    async with serving() as served:
        served.gateway.any_model = True
        answer = await answer_to(served.port, post(body, path=path))
        assert answer.status == 200, answer.body
        assert "x-evil" not in answer.headers
        assert json.loads(answer.body)["model"] == name.replace("\ud800", "\ufffd")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'"zzz":' + b"[" * 500_000 + b"]" * 500_000, 400),
        (b'"metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b'"zzz":' + b"1" * 1_000_000, 200),
        (b'"top_k":' + b"1" * 1_000_000, 400),
        (b'"temperature":1e999', 400),
        (b'"temperature":NaN', 400),
        (b'"model":"nobody","model":"acme/served-model"', 200),
        (rb'"zzz":"\ud800"', 200),
        (b'"zzz":"\x00"', 400),
        (b'"zzz":"\xc0\xaf"', 400),
        (b'"zzz":"\xed\xa0\x80"', 400),
    ],
    ids=[
        "deep",
        "deep known",
        "digits",
        "digits known",
        "1e999",
        "NaN",
        "twice",
        "half",
        "null",
        "overlong",
        "raw half",
    ],
)
async def test_unusual_json_has_a_defined_status(path: str, raw: bytes, status: int) -> None:
    """The last of two members with one name counts, for every API."""
    body = json.dumps(BODIES[path]).encode()[:-1] + b"," + raw + b"}"
    async with serving() as served:
        answer = await answer_to(served.port, post(body, path=path))
        assert answer.status == status, answer.body[:500]
        if status == 400:
            assert answer.message


BIG: list[int] = [2**63, 2**64, 10**400, -(2**63) - 1]


@pytest.mark.parametrize("path", BODIES)
async def test_answer_length_has_one_bound_in_every_api(path: str) -> None:
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    async with serving() as served:

        async def ask(**fields: Any) -> Any:
            body = json.dumps({**BODIES[path], **fields}).encode()
            return await answer_to(served.port, post(body, path=path))

        assert (await ask(**{name: 2**63 - 1})).status == 200
        for number in BIG:
            answer = await ask(**{name: number})
            assert answer.status == 400
            error = json.loads(answer.body)["error"]
            assert (error["type"], name in error["message"]) == ("invalid_request_error", True)
            if number > 0:
                assert str(2**63 - 1) in error["message"]
            for other in ("top_k", "min_tokens"):
                assert (await ask(**{other: number})).status == 400
            for wrong in ({"priority": number}, {"nvext": {"agent_hints": {"osl": number}}}):
                assert (await ask(**wrong)).status == 400
            # A large seed is accepted, but must fit the bus.
            assert (await ask(seed=number)).status == 200
            conversation = served.gateway.turns[-1].conversation
            assert conversation.sampling.seed is not None
            assert -(2**63) <= conversation.sampling.seed < 2**63


def test_zstd_with_a_large_window_is_refused() -> None:
    promise = bytes.fromhex("28b52ffd") + b"\xe0" + b"\xff" * 8 + b"\x01\x00\x00"
    with pytest.raises(Exception, match="not valid zstd"):
        decode(promise, "zstd", 1024)
