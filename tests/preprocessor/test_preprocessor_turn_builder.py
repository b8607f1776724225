"""The parse context of a prepared turn, and its priority."""

from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Hints, Sampling
from schemas.events import PromptImage
from schemas.requests import ParseContext, TurnRequest
from schemas.token_ids import unpack_ids
from services.preprocessor.guide import Checked, TurnGuides
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import output_settings
from services.preprocessor.turn_builder import MAX_PRIORITY, build_turn, priority
from tests.kit.conversations import user

IMAGES = [PromptImage("ab" * 32, 1, 2)]


def context(setup: ModelSetup, **sampling: Any) -> ParseContext:
    conversation = Conversation("m", [user("hi")], sampling=Sampling(**sampling))
    prompt = replace(assemble(conversation, setup), images=IMAGES)
    output = output_settings(conversation.sampling, setup, len(prompt.ids))
    guide = TurnGuides(setup).guide(conversation, prompt, output, Checked())
    turn = build_turn(TurnRequest("t", "f", conversation), prompt, output, setup, guide)
    return msgspec.json.decode(turn.for_worker.context, type=ParseContext)


def test_images_come_with_the_prompts_ids(setup: ModelSetup) -> None:
    with_ids = context(setup, return_token_ids=True)
    assert with_ids.images == IMAGES
    assert len(unpack_ids(with_ids.prompt_ids)) == with_ids.prompt_tokens
    assert context(setup).images == []


def test_priority_keeps_its_fraction_and_bounds() -> None:
    background = Client(kind="background")
    for hints, client, expected in (
        (Hints(), Client(), 0),
        (Hints(latency_sensitivity=0.9), Client(), 0.9),
        (Hints(priority=-2, latency_sensitivity=5.0), Client(), -2),
        (Hints(), background, -1),
        (Hints(priority=1), background, 1),  # what a client asks for wins
        (Hints(latency_sensitivity=1e300), Client(), MAX_PRIORITY),
    ):
        assert priority(Conversation("m", [], hints=hints, client=client)) == expected
