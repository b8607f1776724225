"""WebSocket clients that do not mask their frames, and text that is not UTF-8, byte for byte."""

from services.frontend.http.masks import MaskedFrames
from tests.kit.every import Cases
from tests.kit.frontend import serving
from tests.kit.raw_http import RawSocket, frame

CREATE = b'{"type":"nothing"}'
SPLIT = b'{"type":"\xc3\xa9"}'


class Reader:
    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.ended = True


def test_unmasked_frame_is_found_at_any_position(cases: Cases) -> None:
    for size in (0, 125, 200, 70_000):
        for step in (1, 2, 5, 1000):
            with cases.case(size=size, step=step):
                check_unmasked(size, step)


def check_unmasked(size: int, step: int) -> None:
    reader, calls = Reader(), list[str]()
    check = MaskedFrames(reader, lambda: calls.append("unmasked"))
    before = frame(b"x" * size)
    data = before + frame(b"y" * size, masked=False)
    for at in range(0, len(data), step):
        if check.feed_data(data[at : at + step]) == (True, b""):
            break
    assert calls == ["unmasked"]
    assert len(reader.data) == (len(before) + 1) // step * step


async def test_unmasked_frame_ends_the_connection(cases: Cases) -> None:
    async with serving() as served:
        for name, pieces in {
            "text": [frame(CREATE, masked=False)],
            "ping": [frame(b"", 9, masked=False)],
            "bytewise": [b"\x81", b"\x12"],
            "long": [b"\x81\x7f"],
        }.items():
            for together in (False, True):
                with cases.case(name, together=together):
                    socket = await RawSocket.open(
                        served.port, b"".join(pieces) if together else b""
                    )
                    if not together:
                        await socket.send(*pieces)
                    assert await socket.receive() == 1002


async def test_text_that_is_not_utf8_ends_the_connection() -> None:
    async with serving() as served:
        for text in (b'{"type":"\xff"}', b'{"type":"\xed\xa0\x80"}', b"\xc0\xaf", SPLIT[:10]):
            socket = await RawSocket.open(served.port)
            await socket.send(frame(text))
            assert await socket.receive() == 1007, text
