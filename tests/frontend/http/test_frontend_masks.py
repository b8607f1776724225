"""WebSocket clients that do not mask their frames, and text that is not UTF-8, byte for byte."""

from functools import partial

from services.frontend.http.masks import MaskedFrames
from tests.kit.every import Cases
from tests.kit.frontend import serving
from tests.kit.raw_http import RawSocket, frame

CREATE = b'{"type":"nothing"}'


class Reader:
    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""


def test_unmasked_frame_is_found_at_any_position(cases: Cases) -> None:
    for size in (0, 125, 200, 70_000):
        for step in (1, 2, 1000):
            with cases.case(size=size, step=step):
                reader, calls = Reader(), list[str]()
                check = MaskedFrames(reader, partial(calls.append, "unmasked"))
                before = frame(b"x" * size)
                data = before + frame(b"y" * size, masked=False)
                for at in range(0, len(data), step):
                    if check.feed_data(data[at : at + step]) == (True, b""):
                        break
                assert calls == ["unmasked"]
                assert len(reader.data) == (len(before) + 1) // step * step


async def test_invalid_frame_ends_the_connection(cases: Cases) -> None:
    """1002: it has no mask; 1007: its text is not UTF-8."""
    async with serving() as served:
        for name, pieces, code in (
            ("text", [frame(CREATE, masked=False)], 1002),
            ("ping", [frame(b"", 9, masked=False)], 1002),
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
