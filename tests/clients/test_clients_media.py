"""Images and PDFs from real clients: the user learns that an image was not seen, and each prompt
extends the one before."""

import base64
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.images.image import image_hash
from tests.clients.claude import ClaudeCode, blocks, normalized
from tests.clients.conftest import WINDOW, observed, running
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import turn_id
from tests.clients.session import Session
from tests.kit.models import built_once
from tests.kit.pdf_files import PNG, pdf
from tests.kit.vision_model import build_vision_model, png

pytestmark = pytest.mark.timeout(900)

NOTE = "\n\n[Note from the server: images are not shown to this model. It gets only a line with type and size instead.]"


def reading(machine: Machine, name: str) -> str:
    """A message that makes the client read a file."""
    read = call("Read", file_path=str(machine.project / name))
    outputs = [f"I read.\n</think>\n\nReading.\n\n{read}", "Hm.\n</think>\n\nI have read it. "]
    return request(outputs)


async def test_claude_code_reads_an_image_and_a_pdf(machine: Machine, session: Session) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    (machine.project / "shot.png").write_bytes(PNG)
    (machine.project / "plan.pdf").write_bytes(pdf("The code is 4711."))
    async with claude.dialog() as dialog:
        results = [
            await dialog.ask(reading(machine, name))
            for name in ("shot.png", "plan.pdf", "shot.png")
        ]
    read = "I have read it."
    assert [result["result"].strip() for result in results] == [f"{read} {NOTE}", read, read]
    shown = [text for kind, text in blocks(dialog.lines) if kind == "text"]
    assert [text.count("Note from the server") for text in shown] == [0, 1, 0, 0, 0, 0]
    sent = str([one.body["messages"] for one in session.main[-1:]])
    assert ("'image'" in sent, "'document'" in sent) == (True, True)
    await session.check(session.main, normalized)


@pytest.fixture
async def vision_session(
    nats_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Session]:
    model = built_once(
        tmp_path_factory, "vision", lambda path: build_vision_model(path, window=WINDOW)
    )
    counts = {"worker": 2, "preprocessor": 2}
    with running(nats_binary, model, tmp_path_factory, counts) as stack:
        async with observed(stack) as session:
            yield session


def sent_hashes(body: dict[str, Any]) -> list[str]:
    """The hashes of the images in a request, in order."""
    found = re.findall(r"'(?:data:image/[a-z]+;base64,)?([A-Za-z0-9+/]{200,}=*)'", str(body))
    return [image_hash(base64.b64decode(data), None) for data in found]


async def test_claude_code_shows_screenshots_to_a_vision_model(
    machine: Machine, vision_session: Session
) -> None:
    """The worker gets the images that the client sent, in order, and each prompt extends the one
    before."""
    session = vision_session
    claude = await ClaudeCode(machine).connect(session.wire.url)
    for number, name in enumerate(("one.png", "two.png")):
        (machine.project / name).write_bytes(png(320, 200, number))
    async with claude.dialog() as dialog:
        for name in ("one.png", "two.png", "one.png"):
            answer = await dialog.ask(reading(machine, name))
            assert answer["result"].strip() == "I have read it."
    assert len(sent_hashes(session.main[-1].body)) == 3
    for one in session.main:
        turn = await session.bus.ended(turn_id(one))
        assert [image.hash for image in turn.images] == sent_hashes(one.body)
    await session.check(session.main, normalized)
    assert "Note from the server" not in str([one.body for one in session.main])
