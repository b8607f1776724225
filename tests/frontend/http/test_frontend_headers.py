"""Header values that are not UTF-8: any byte may stand there (RFC 9110, 5.5), and none of them may
do harm."""

import json

import msgspec

from tests.kit.bodies import responses
from tests.kit.every import Cases
from tests.kit.frontend import Served, serving
from tests.kit.raw_http import answer_to
from tests.kit.raw_http import post as request

ASKED = json.dumps(responses()).encode()


async def post(served: Served, header: bytes) -> tuple[int, dict[str, str]]:
    """Sends a request with this line in its head. Returns status and headers of the answer."""
    head, _, body = request(ASKED, path="/v1/responses").partition(b"\r\n\r\n")
    answer = await answer_to(served.port, head + b"\r\n" + header + b"\r\n\r\n" + body)
    return answer.status, answer.headers


async def test_header_values_may_have_any_bytes(cases: Cases) -> None:
    names = ("user-agent", "x-session-affinity", "x-claude-code-session-id", "x-request-id")
    async with serving() as served:
        for name in names:
            with cases.case(name=name):
                sent = f"{name}: ".encode() + b"a\xff \xc3\xa9 \xed\xa0\x80b"
                status, headers = await post(served, sent)
                assert status == 200
                assert headers["x-request-id"] == headers["request-id"]
                conversation = served.gateway.conversations[-1]
                msgspec.msgpack.encode(conversation)
                msgspec.json.encode(served.lines[-1], enc_hook=str)
                if name == "user-agent":
                    assert conversation.client.user_agent == "a? é ???b"
        # Different bytes are different sessions.
        for value in (b"\xff", b"\xc3\xa9", b"\xe9", b"\xed\xb3\xbf", b"\\xff", b"\xc3\xbf"):
            assert (await post(served, b"x-session-id: " + value))[0] == 200, value
        assert len({asked.client.session for asked in served.gateway.conversations[-6:]}) == 6
        # As bytes that are not UTF-8 are marked.
        assert (await post(served, b"x-session-id: \0\xc3\xbf"))[0] == 400
        assert (await post(served, b"content-encoding: \xff"))[0] == 400
        assert (await post(served, b"origin: https://\xff"))[0] == 403
