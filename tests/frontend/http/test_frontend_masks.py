"""WebSocket clients that do not mask their frames, and text that is not UTF-8."""

from tests.kit.every import Cases
from tests.kit.frontend import serving
from tests.kit.raw_http import RawSocket, frame


async def test_invalid_frame_ends_the_connection(cases: Cases) -> None:
    """1002: it has no mask; 1007: its text is not UTF-8."""
    async with serving() as served:
        for name, pieces, code in (
            ("text", [frame(b"{}", masked=False)], 1002),
            ("bytewise", [b"\x81", b"\x12"], 1002),
            ("not UTF-8", [frame(b'{"type":"\xff"}')], 1007),
            ("a surrogate", [frame(b'{"type":"\xed\xa0\x80"}')], 1007),
            ("half a character", [frame(b'{"type":"\xc3')], 1007),
        ):
            for together in (False, True):
                with cases.case(name, together=together):
                    socket = await RawSocket.open(
                        served.port, b"".join(pieces) if together else b""
                    )
                    if not together:
                        await socket.send(*pieces)
                    assert await socket.receive() == code
