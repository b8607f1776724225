"""Images and PDFs from real clients: the user learns that an image was not seen, and each prompt extends the one before."""

import pytest

from tests.clients.claude import ClaudeCode, blocks, normalized
from tests.clients.codex import CodexCli, items
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.session import Session
from tests.pdf_files import PNG, pdf

pytestmark = pytest.mark.timeout(900)

NOTE = "\n\n[Note from the server: images are not shown to this model. It gets only a line with type and size instead.]"


async def test_claude_code_reads_an_image_and_a_pdf(machine: Machine, session: Session) -> None:
    claude = await ClaudeCode(machine).connect(session.wire.url)
    (machine.project / "shot.png").write_bytes(PNG)
    (machine.project / "plan.pdf").write_bytes(pdf("The code is 4711."))
    results = []
    async with claude.dialog() as dialog:
        for name in ("shot.png", "plan.pdf", "shot.png"):
            read = "I read.\n</think>\n\nReading.\n\n" + call("Read", file_path=str(machine.project / name))
            results.append((await dialog.ask(request([read, "Hm.\n</think>\n\nI have read it. "])))["result"])
    assert [result.strip() for result in results] == ["I have read it. " + NOTE, "I have read it.", "I have read it."]
    shown = [text for kind, text in blocks(dialog.lines) if kind == "text"]
    assert [text.count("Note from the server") for text in shown] == [0, 1, 0, 0, 0, 0]
    sent = str([one.body["messages"] for one in session.main[-1:]])
    assert ("'image'" in sent, "'document'" in sent) == (True, True)
    session.check_served()
    session.check_history(session.main, normalized)
    await session.check_counts(session.main)
    assert await session.prefix_breaks(session.main) == []


async def test_codex_shows_that_an_attached_image_was_not_seen(machine: Machine, session: Session) -> None:
    """Codex itself leaves out the image, without a word to the user: the model's profile has only text."""
    codex = await CodexCli(machine).connect(session.wire.url)
    (machine.project / "shot.png").write_bytes(PNG)
    answer = request(["Hm.\n</think>\n\nI have looked."])
    first = await codex.ask(answer, "-i", "shot.png", "--")
    second = await codex.ask(answer, resume=True)
    assert [items(ran)[-1]["text"] for ran in (first, second)] == ["I have looked." + NOTE, "I have looked."]
    session.check_served()
    session.check_history(session.main)
    await session.check_counts(session.main)
    assert await session.prefix_breaks(session.main) == []
