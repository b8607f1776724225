"""An answer whose turns are not all opened: what was begun for it ends."""

import asyncio
from base64 import b64encode

from msgspec.structs import replace

from schemas.control import VISION
from schemas.errors import Overloaded
from services.runtime.config import FrontendConfig
from tests.kit.bodies import block, chat, messages, user
from tests.kit.clock import LoopClock
from tests.kit.frontend import CARD, FakeGateway, FakeTurn, serving
from tests.kit.pdf_files import PNG


async def test_refused_choice_ends_the_others() -> None:
    async def refuse_the_second(turn: FakeTurn) -> None:
        if turn.id.endswith("c1"):
            raise Overloaded("no room for a second choice")
        if turn.id.endswith("c2"):
            await asyncio.Event().wait()

    gateway = FakeGateway(lambda: [asyncio.Event()], on_turn=refuse_the_second)
    async with serving(gateway) as served:
        reply = await served.post("/v1/chat/completions", chat(n=3))
        assert reply.status == 503
        assert "no room for a second choice" in reply.text
    assert [turn.cancelled for turn in gateway.turns] == [["hangup"], [], []]
    assert gateway.open_cancelled.is_set(), "the third was still being opened"


async def test_deadline_applies_before_turns_are_opened(loop_clock: LoopClock) -> None:
    storing = asyncio.Event()

    async def store_never(_name: str, _data: bytes) -> None:
        storing.set()
        await asyncio.Event().wait()

    source = {"type": "base64", "media_type": "image/png", "data": b64encode(PNG).decode()}
    asked = messages(user(block("image", source=source)))
    gateway = FakeGateway(cards=[replace(CARD, features=[VISION])])
    config = FrontendConfig(request_timeout_s=30)
    async with serving(gateway, config, put_image=store_never) as served:
        answering = asyncio.create_task(served.post("/v1/messages", asked))
        await storing.wait()
        loop_clock.passed += 30
        assert (await answering).error[:2] == (504, "timeout_error")
        assert served.lines[-1]["outcome"] == "timed_out"
    assert gateway.turns == []
