"""The parse context of a prepared turn."""

from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.conversation import Conversation, Sampling
from schemas.events import PromptImage
from schemas.requests import ParseContext, TurnRequest
from schemas.token_ids import unpack_ids
from services.preprocessor.guide import Checked, turn_guide
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import assemble
from services.preprocessor.turn_builder import prepare_turn
from tests.kit.conversations import user

IMAGES = [PromptImage("ab" * 32, 1, 2)]


def context(setup: ModelSetup, **sampling: Any) -> ParseContext:
    conversation = Conversation("m", [user("hi")], sampling=Sampling(**sampling))
    prompt = replace(assemble(conversation, setup), images=IMAGES)
    guide = turn_guide(conversation, prompt, setup, Checked())
    turn = prepare_turn(TurnRequest("t", "f", conversation), prompt, setup, guide)
    return msgspec.json.decode(turn.context, type=ParseContext)


def test_images_come_with_the_prompts_ids(setup: ModelSetup) -> None:
    with_ids = context(setup, return_token_ids=True)
    assert with_ids.images == IMAGES
    assert len(unpack_ids(with_ids.prompt_ids)) == with_ids.prompt_tokens
    assert context(setup).images == []
