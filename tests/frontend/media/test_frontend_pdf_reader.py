"""PDFs are read in processes of their own, within limits, once for each document."""

import asyncio
import base64
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest

from schemas.conversation import Conversation, Media, Message, Part, Result, Text
from services.frontend.content.pdf_document import PDF, PdfDocument, make_document
from services.frontend.media.pdf_reader import PdfReader
from tests.kit.frontend import log_into
from tests.kit.pdf_files import pdf, pdf_of
from tests.kit.waiting import LIMIT_S

OVER = "not readable within this server's limits"
SPAWN = asyncio.create_subprocess_exec


class Reading:
    """A reader with a visible log and visible processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[MutableMapping[str, Any]] = []
        self.started: list[asyncio.subprocess.Process] = []

        async def spawn(*command: str, **options: Any) -> asyncio.subprocess.Process:
            self.started.append(await SPAWN(*command, **options))
            return self.started[-1]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)

    def reader(self, max_pages: int = 9, **limits: Any) -> PdfReader:
        return PdfReader(log_into(self.lines), max_pages, **limits)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


def given(data: bytes | str, title: str | None = None, head: str = "") -> Media:
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return make_document(PDF, text, len(data), title, head)


async def read(reader: PdfReader, *parts: Part) -> list[Part]:
    return (await reader.read(Conversation("m", [Message("user", list(parts))]))).messages[0].parts


async def test_text_of_each_page_is_read_in_messages_and_results(reading: Reading) -> None:
    reader = reading.reader()
    document = given(pdf("First page.", "", "Third page."), "plan.pdf", "Title: plan.pdf\n\n")
    assert isinstance(document, PdfDocument)
    text = "Title: plan.pdf\n\n[page 1]\nFirst page.\n\n[page 2: no text]\n\n[page 3]\nThird page."
    said, image = Text("Look:"), Media("image", "image/png", 70)
    result = Result("c1", [said, document, image], is_error=False)
    assert await read(reader, said, document, image, result) == [
        said,
        Text(text),
        image,
        Result("c1", [said, Text(text), image], is_error=False),
    ]
    assert document.source.data == ""  # a turn that lasts for minutes does not hold it
    # The next request of the session.
    again = given(pdf("First page.", "", "Third page."), None, "")
    assert await read(reader, again) == [Text(text.removeprefix("Title: plan.pdf\n\n"))]
    assert len(reading.started) == 1


async def test_pdf_without_text_keeps_its_place_and_has_the_reason(reading: Reading) -> None:
    async def check(data: bytes | str, problem: str) -> None:
        (part,) = await read(reading.reader(), given(data, "x.pdf"))
        assert part == Media("document", PDF, len(data), title="x.pdf", problem=problem)

    await asyncio.gather(
        check(pdf("secret", locked=True), "protected by a password"),
        check(pdf("a")[:200], "not a readable PDF"),
        check(b"", "not a readable PDF"),
        check("JVBERi0!!", "not valid base64"),
        check(pdf(""), "no text in it"),
    )
    assert not reading.lines


async def test_late_process_is_killed_and_not_started_again(reading: Reading) -> None:
    reader = reading.reader(wall_s=0)
    for _ in range(2):
        (part,) = await read(reader, given(pdf("a")))
        assert isinstance(part, Media)
        assert part.problem == OVER
    assert [process.returncode for process in reading.started] == [-9]
    assert [line["event"] for line in reading.lines] == ["pdf.timeout"]


async def test_client_that_leaves_ends_the_process(reading: Reading) -> None:
    task = asyncio.create_task(read(reading.reader(), given(pdf("a"))))
    async with asyncio.timeout(LIMIT_S):
        while not reading.started:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reading.started[0].returncode == -9


@pytest.mark.slow
async def test_cpu_limit_ends_only_the_process_of_the_document(reading: Reading) -> None:
    bomb = pdf_of([zlib.compress(b"BT /F1 1 Tf 10 10 Td (AAAAAAAA) Tj ET\n" * 2_000_000, 1)])
    reader = reading.reader(cpu_s=1, wall_s=60)
    (part,) = await read(reader, given(bomb))
    assert isinstance(part, Media)
    assert part.problem == OVER
    assert (reading.started[0].returncode or 0) < 0
    assert await read(reader, given(pdf("After it."))) == [Text("[page 1]\nAfter it.")]
