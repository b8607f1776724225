"""An attacker's bytes: two readings of one request, broken framing, names that reach headers, logs
and subjects."""

import json
import logging
import re

import pytest

from services.frontend.http.server import MAX_HEADER_BYTES, MAX_URL_BYTES
from tests.kit.bodies import APIS
from tests.kit.every import Cases
from tests.kit.frontend import serving
from tests.kit.raw_http import BODY, CHUNKED, answer_to, answers_to, chunk, get, post
from tests.kit.raw_http import LAST_CHUNK as END

HIDDEN = get("/v1/models")

REFUSED: dict[str, bytes] = {
    "length and chunks": post(END + HIDDEN, CHUNKED),
    "chunks and length": post(END, CHUNKED, "Content-Length: 5", sized=False) + HIDDEN,
    "two lengths": post(BODY, "Content-Length: 3"),
    "endless length": post(b"", "Content-Length: 99999999999999999999999", sized=False),
    "chunked not last": post(END, "Transfer-Encoding: chunked, identity", sized=False),
    "space before the colon": post(END, "Transfer-Encoding : chunked", sized=False),
    "bare CR in the head": get().replace(b"localhost\r\n", b"localhost\rX: y\r\n"),
    "bare LF in an extension": post(chunk(BODY, b";a=\nb") + END, CHUNKED, sized=False),
    "folded header": get("/version", "X: a\r\n b"),
    "two hosts": get("/version", "Host: other"),
    "null in a header": get("/version", "X: a\0b"),
    "a method without end": b"A" * 40_000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
URL_TOO_LONG = f"A URL may have at most {MAX_URL_BYTES} bytes."
HEADER_TOO_LONG = f"A header may have at most {MAX_HEADER_BYTES} bytes."
TOO_LONG: dict[str, tuple[bytes, int, str]] = {
    "url": (get("/" + "a" * MAX_URL_BYTES), 414, URL_TOO_LONG),
    "header": (get("/version", "X: a" + "a" * MAX_HEADER_BYTES), 431, HEADER_TOO_LONG),
    "headers": (
        get("/version", *(f"X{i}: x" for i in range(200))),
        431,
        "The request has too many headers.",
    ),
}


async def test_ambiguous_or_too_long_request_is_refused(cases: Cases) -> None:
    """One answer in our form, then the connection is closed: nothing after it is read as a request.
    Also the guard of what `Connection.handle_error` reads from aiohttp's exceptions."""
    assert MAX_URL_BYTES != MAX_HEADER_BYTES, "the limit tells which of them was too long"
    malformed = {name: (data, 400, "Malformed HTTP request: ") for name, data in REFUSED.items()}
    async with serving() as served:
        for name, (data, status, message) in {**malformed, **TOO_LONG}.items():
            with cases.case(name):
                (answer,) = await answers_to(served.port, data + HIDDEN)
                assert answer.status == status
                assert answer.message.startswith(message)
                document = json.loads(answer.body)
                assert document["error"]["type"] in ("invalid_request_error", "request_too_large")
                own = document["request_id"]
                assert re.fullmatch(r"req_[0-9a-f]{24}", own)
                assert (answer.headers["request-id"], answer.headers["x-request-id"]) == (own, own)
                assert answer.headers["server"] == "turnwire"
                assert answer.headers["x-content-type-options"] == "nosniff"
        longest = get("/" + "a" * (MAX_URL_BYTES - 1))
        assert (await answer_to(served.port, longest)).status == 404
        longest = get("/version", "X: " + "a" * (MAX_HEADER_BYTES - 1))
        assert (await answer_to(served.port, longest)).status == 200
    assert served.gateway.turns == []


async def test_no_key_gets_into_the_log_of_malformed_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served:
        for damaged in (": secret\x01", ": secret\r\n x", ": secret\nx", " secret"):
            answer = await answer_to(served.port, get("/version", f"X-Api-Key{damaged}"))
            assert answer.status == 400, damaged
            if damaged != " secret":
                assert b"secret" not in answer.body
    assert "malformed HTTP" in caplog.text
    assert "secret" not in caplog.text


async def test_pipelined_requests_get_their_own_answers() -> None:
    bad = post(b'{"model":', path="/v1/chat/completions")
    with_body = get("/version", "Content-Length: 5") + b"abcde"
    parts = [get(), post(), bad, post(HIDDEN, path="/nothing"), with_body, get() * 100]
    async with serving() as served:
        answers = await answers_to(served.port, b"".join(parts), 105)
    assert [answer.status for answer in answers] == [200, 200, 400, 404, *[200] * 101]
    assert len({answer.headers["request-id"] for answer in answers}) == len(answers)


async def test_rest_of_a_body_is_not_parsed_as_a_request() -> None:
    oversized = post(b"", "Content-Length: 70000000", sized=False)
    old = post(chunk(BODY) + END, CHUNKED, "Connection: keep-alive", sized=False)
    old = old.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)
    async with serving() as served:
        assert (await answer_to(served.port, oversized + HIDDEN)).status == 413
        refused = await answers_to(served.port, post(HIDDEN, "Connection: close", path="/nothing"))
        assert [answer.status for answer in refused] == [404]
        # What stands after chunks of HTTP/1.0 may be a part of the body to the proxy that sent it.
        (answer,) = await answers_to(served.port, old + HIDDEN)
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_absolute_url_and_name_in_a_path_stay_here(cases: Cases) -> None:
    names = ["a%0d%0aX-Evil:%201", "..%2f..%2fetc%2fpasswd", "%3e", "a%00b", "%ed%a0%80", "%zz"]
    async with serving() as served:
        for url, host, status in (
            ("http://localhost/version", "localhost", 200),
            ("//evil.example/version", "localhost", 404),
            ("http://localhost/version", "evil.example", 403),
            ("http://evil.example/live/../v1/models", "evil.example", 403),
        ):
            with cases.case(url=url, host=host):
                assert (await answer_to(served.port, get(url, host=host))).status == status
        for path in ("/v1/models/", "/v1/responses/", "/v1/chat/completions/", "/v1/nothing/"):
            for name in names:
                with cases.case(path=path, name=name):
                    answer = await answer_to(served.port, get(path + name))
                    assert answer.status == 404
                    assert "x-evil" not in answer.headers
                    json.loads(answer.body)
    lines = [json.dumps(line, default=str) for line in served.lines]
    assert [line for line in lines if "\n" in line] == []


async def test_model_name_stays_a_name(cases: Cases) -> None:
    names = ["a\r\nX-Evil: 1\r\n\r\nbody", "*.>", "\x00", "\ud800", "a" * 100_000]
    async with serving() as served:
        served.gateway.any_model = True
        for api in APIS:
            for name in names:
                with cases.case(api.name, name[:9]):
                    asked = json.dumps(api.body(model=name)).encode()
                    answer = await answer_to(served.port, post(asked, path=api.path))
                    assert answer.status == 200, answer.body
                    assert "x-evil" not in answer.headers
                    assert json.loads(answer.body)["model"] == name.replace("\ud800", "\ufffd")


async def test_number_has_one_bound_in_every_api(cases: Cases) -> None:
    async with serving() as served:
        for api in APIS:
            for number in (2**63, 10**400, -(2**63) - 1):
                with cases.case(api.name, number):
                    reply = await served.post(api.path, api.body(top_k=number))
                    assert reply.error[:2] == (400, "invalid_request_error")
                    assert "top_k" in reply.error[2]
                    # A large seed is accepted, but must fit the bus.
                    assert (await served.post(api.path, api.body(seed=number))).status == 200
                    seed = served.gateway.conversations[-1].sampling.seed
                    assert seed is not None
                    assert -(2**63) <= seed < 2**63
