"""Log probabilities and raw prompts through all four services, also where messages are lost."""

import asyncio
from typing import Any

import pytest

from schemas.conversation import Conversation, RawPrompt, Sampling
from schemas.errors import Invalid
from schemas.events import Delta, Finish, FinishReason, TokenLogprob
from schemas.frames import pack_ids, unpack_ids
from services.frontend.http.auth import anyone
from tests.kit.counting import Plan
from tests.kit.local import Local, Running


def logprobs_of(turn: Running) -> list[list[TokenLogprob]]:
    """The tokens of each block, as the client saw them."""
    blocks: list[list[TokenLogprob]] = [[] for _ in turn.sink.texts]
    for event in turn.sink.events:
        if isinstance(event, Delta):
            for token in event.logprobs or []:
                assert event.offset <= token.at < event.offset + len(event.text)
            blocks[event.block] += event.logprobs or []
    return blocks


def check(turn: Running) -> None:
    """Each character belongs to exactly one token, the one that wrote it."""
    for text, tokens in zip(turn.sink.texts, logprobs_of(turn), strict=True):
        ends = [token.at for token in tokens[1:]] + [len(text)]
        assert tokens[0].at == 0
        for token, end in zip(tokens, ends, strict=True):
            assert text[token.at : end] in token.token
            assert token.logprob == -0.5


async def test_each_character_has_one_token_also_when_the_parser_dies(local: Local) -> None:
    await local.start(1, 2)
    plan = Plan(length=80, hold_at=40, go=asyncio.Event())
    turn = local.turn(plan, logprobs=0)
    await turn.sink.words_at_least(30)
    await local.parser_of(turn).kill()
    plan.go.set()
    await turn.whole(80)
    check(turn)


def raw(local: Local, prompt: RawPrompt, **sampling: Any) -> Conversation:
    return Conversation(
        local.model.name, [], prompt=prompt, sampling=Sampling(max_tokens=50, **sampling)
    )


async def test_a_raw_prompt_reaches_the_engine_and_its_output_is_text(local: Local) -> None:
    await local.start()
    ids = [7, 0, 11]
    conversation = raw(local, RawPrompt(token_ids=pack_ids(ids)), logprobs=0)
    local.plans["raw1"] = Plan(length=10)
    turn = Running(local, local.of("frontend")[-1], "raw1", conversation)
    end = await turn.finished()
    assert isinstance(end, Finish)
    (worker,) = local.of("worker")
    assert list(worker.engine.seen[-1].token_ids) == ids
    assert turn.sink.kinds == ["text"]
    spelled = b"".join(token.data for token in logprobs_of(turn)[0])
    assert spelled == turn.sink.texts[0].encode()
    assert turn.sink.texts[0].startswith(" "), "no blank is taken off"
    assert len(turn.sink.texts[0].split()) == 12
    assert end.usage.prompt == 3


async def test_raw_prompts_are_counted_and_tokenized(local: Local) -> None:
    await local.start()
    conversation = raw(local, RawPrompt("Once upon a time"))
    ids = local.model.setup.tokenizer.encode("Once upon a time", True)
    assert await local.admission.count(conversation, anyone()) == len(ids)
    shown = await local.admission.tokenize(conversation, anyone(), True)
    assert unpack_ids(shown.token_ids) == ids
    with pytest.raises(Invalid):
        await local.admission.count(raw(local, RawPrompt("")), anyone())


@pytest.mark.parametrize("stays", [False, True])
async def test_a_stop_string_ends_the_turn_with_or_without_itself(
    local: Local, stays: bool
) -> None:
    await local.start()
    # The 21st word of the first worker, two of which are thought.
    _, word = local.model.words[7 * 20]
    turn = local.turn(Plan(length=60, pace_s=0.001), stop=[word], include_stop=stays, logprobs=0)
    end = await turn.finished()
    assert isinstance(end, Finish)
    assert (end.reason, end.stop_string) == (FinishReason.STOP_STRING, word)
    assert turn.sink.texts[-1].endswith(word) is stays
    check(turn)
