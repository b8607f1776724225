"""Images and PDFs from real clients: the user learns that an image was not seen, and each prompt
extends the one before."""

import pytest

from tests.clients.claude import ClaudeCode, blocks
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.kit.messages_client import say
from tests.kit.model_output import written_call
from tests.kit.pdf_files import PNG, pdf

pytestmark = pytest.mark.timeout(900)

NOTE = "\n\n[Note from the server: images are not shown to this model. It gets only a line with type and size instead.]"


def reading(machine: Machine, name: str) -> str:
    """A message that makes the client read a file."""
    read = written_call("Read", file_path=str(machine.project / name))
    outputs = [f"I read.\n</think>\n\nReading.\n\n{read}", "Hm.\n</think>\n\nI have read it. "]
    return say(*outputs)


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
    await session.check(session.main)
