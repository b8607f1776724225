"""Turns that end early at any token: the next prompt keeps all of their tokens that the template's
text has."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from bench.ledger.clients import CLIENTS, Block, Dialogue
from bench.ledger.sessions import WORD, Model, start
from bench.ledger.walk import ROOM, Before, common
from fuzz.generated_turns import Choices
from schemas.events import FinishReason
from services.ledger.recall import TurnLedger
from services.preprocessor.ledger_model import open_ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt
from tests.ledger.test_ledger_pairs import FORMS, prompt_of
from tests.ledger.test_ledger_sessions import (
    CHANCE,
    TEMPLATES,
    Models,
    models,
    quick,
    renders_up_to,
    tokens_received,
)

__all__ = ["models"]
ORDERED = ("claude-code", "codex", "openclaw-responses")
"""Clients that send reasoning back in its place."""


def sent_back(blocks: Sequence[Block], dialogue: Dialogue) -> Dialogue:
    """The session after a turn that its client sends back as it received it."""
    calls = [block for block in blocks if block.kind == "tool_use"]
    answer = (
        ("results", [(call.call_id, f"w0{number}x") for number, call in enumerate(calls)])
        if calls
        else ("user", "Go on.")
    )
    return Dialogue(dialogue.system, dialogue.tools, [*dialogue.entries, ("said", blocks), answer])


def check(before: Before, prompt: Prompt, setup: ModelSetup, ledger: TurnLedger) -> None:
    """Wherever the template has the words of a turn after the same text and as the model's own, the
    prompt keeps its tokens: all of them if the turn ends in text or reasoning, else up to the last
    word that its client received."""
    output = before.output
    assert WORD.findall(setup.tokenizer.decode(prompt.ids)) == WORD.findall(prompt.text)
    words = sum(len(WORD.findall(block.text)) for block in output.blocks)
    if not words or not renders_up_to(before, prompt, words, ledger.model):
        return
    kinds = [block.kind for block in output.blocks if WORD.search(block.text)]
    if "tool_use" in kinds and output.blocks[-1].kind != kinds[-1]:
        # words do not show whether the template has the results before the part that follows the
        # call
        return
    same = common([*prompt.ids], before.ids) - len(before.prompt.ids)
    needed = tokens_received(output, setup)
    assert same >= needed, (
        output.text,
        prompt.text[len(before.head) :],
        setup.tokenizer.decode(output.ids[:same]),
    )


def cut_everywhere(setup: ModelSetup, chance: bytes, step: int) -> None:
    choose = Choices(chance)
    client = CLIENTS[choose.of(ORDERED)]
    first = open_ledger(setup, entry_bytes=ROOM, prompt_bytes=ROOM)
    model = Model(setup, first, choose)
    dialogue = start(model)
    prompt = prompt_of(client, dialogue, setup, first)
    ids = model.write(prompt)
    for size in range(1, len(ids) + 1, step):
        output = model.read(prompt, ids[:size], FinishReason.LENGTH)
        ledger = TurnLedger(first.model, entry_bytes=ROOM, prompt_bytes=ROOM)
        for entry in output.entries:
            ledger.add(entry)
        later = sent_back(output.blocks, dialogue)
        following = prompt_of(client, later, setup, ledger)
        check(Before(prompt, output), following, setup, first)
        answer = model.answer(following)
        rebuilt = TurnLedger(first.model, entry_bytes=ROOM, prompt_bytes=ROOM)
        for entry in (*output.entries, *answer.entries):
            ledger.add(entry)
            rebuilt.add(entry)
        later = sent_back(answer.blocks, later)
        assert [*prompt_of(client, later, setup, rebuilt).ids] == [
            *prompt_of(client, later, setup, ledger).ids
        ]


@pytest.mark.parametrize("name", sorted(FORMS))
@quick
@given(chance=CHANCE)
def test_turn_that_ends_at_some_tokens_keeps_them(models: Models, name: str, chance: bytes) -> None:
    cut_everywhere(models.of(name), chance, 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEMPLATES))
@quick
@given(chance=CHANCE)
def test_turn_that_ends_at_any_token_keeps_its_tokens(
    models: Models, name: str, chance: bytes
) -> None:
    cut_everywhere(models.of(name), chance, 1)


def test_separator_after_the_last_complete_call_is_left_out(models: Models) -> None:
    """The template closes the list of calls there."""
    setup = models.of("late_end")
    ledger = open_ledger(setup, entry_bytes=ROOM, prompt_bytes=ROOM)
    model = Model(setup, ledger, Choices(b""))
    dialogue = start(model)
    prompt = prompt_of(CLIENTS["codex"], dialogue, setup, ledger)
    whole = [*setup.tokenizer.encode('<|tools_prefix|>[{"look": {"where": "w9x"}}')]
    output = model.read(
        prompt,
        [*whole, *setup.tokenizer.encode(","), *setup.tokenizer.encode(" ")],
        FinishReason.LENGTH,
    )
    assert [block.kind for block in output.blocks] == ["tool_use"]
    for entry in output.entries:
        ledger.add(entry)
    following = prompt_of(CLIENTS["codex"], sent_back(output.blocks, dialogue), setup, ledger)
    assert [*following.ids[: len(prompt.ids) + len(whole)]] == [*prompt.ids, *whole]
    assert setup.tokenizer.decode(following.ids[len(prompt.ids) + len(whole) :]).startswith(
        "]<|tools_suffix|>"
    )


@pytest.mark.parametrize("name", sorted(FORMS))
def test_token_across_the_last_part_and_a_cut_call_splits_and_doubles_nothing(
    models: Models, name: str
) -> None:
    """The first token ends a text and begins a call, which the client does not get, or a control
    token after the turn."""
    setup = models.of(name)
    call = setup.family.style.write_call("look", {"where": "w9x"})
    token = next(
        id
        for id in range(setup.tokenizer.backend.get_vocab_size())
        if (text := setup.tokenizer.decode([id])).endswith(call[0])
        and text[:-1].strip()
        and text.isascii()
    )
    rest = [id for character in call[1:-4] for id in setup.tokenizer.encode(character)]
    for size in range(len(rest) + 1):
        ledger = open_ledger(setup, entry_bytes=ROOM, prompt_bytes=ROOM)
        model = Model(setup, ledger, Choices(b""))
        dialogue = start(model)
        prompt = prompt_of(CLIENTS["codex"], dialogue, setup, ledger)
        output = model.read(prompt, [token, *rest[:size]], FinishReason.LENGTH)
        for entry in output.entries:
            ledger.add(entry)
        later = sent_back(output.blocks, dialogue)
        following = prompt_of(CLIENTS["codex"], later, setup, ledger)
        assert WORD.findall(setup.tokenizer.decode(following.ids)) == WORD.findall(following.text)
        if all(block.kind == "text" for block in output.blocks):
            shown = output.blocks[-1].text.strip()
            after = ledger.encoder.fragment(
                following.text[following.text.rindex(shown) + len(shown) :]
            )
            assert [*following.ids[-len(after) :]] == [*after]
