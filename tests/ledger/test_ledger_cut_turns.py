"""Turns that end early at any token: the next prompt keeps all of their tokens that the template's
text has."""

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.events import FinishReason
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from sessions.clients import CLIENTS, Block, Dialogue
from sessions.models import empty_ledger
from sessions.turn_writer import WORD, Choices
from sessions.walk import Before, common
from tests.kit.every import for_each
from tests.ledger.walks import (
    FORMS,
    TEMPLATES,
    Models,
    PlayedSession,
    in_sessions,
    prompt_of,
    renders_up_to,
    tokens_received,
)

ORDERED = ("claude-code", "codex", "openclaw-responses")
"""Clients that send reasoning back in its place."""


def sent_back(blocks: Sequence[Block], dialogue: Dialogue) -> Dialogue:
    """The session after a turn that its client sends back as it received it."""
    calls = [block for block in blocks if block.kind == "tool_use"]
    answer: tuple[str, Any] = ("user", "Go on.")
    if calls:
        answer = ("results", [(call.call_id, f"w0{n}x") for n, call in enumerate(calls)])
    return Dialogue(dialogue.system, dialogue.tools, [*dialogue.entries, ("said", blocks), answer])


def check(before: Before, prompt: Prompt, session: PlayedSession) -> None:
    """Wherever the template has the words of a turn after the same text and as the model's own, the
    prompt keeps its tokens: all of them if the turn ends in text or reasoning, else up to the last
    word that its client received."""
    output, setup = before.output, session.setup
    assert WORD.findall(setup.tokenizer.decode(prompt.ids)) == WORD.findall(prompt.text)
    words = sum(len(WORD.findall(block.text)) for block in output.blocks)
    if not words or not renders_up_to(before, prompt, words, session.ledger.model):
        return
    kinds = [block.kind for block in output.blocks if WORD.search(block.text)]
    last = output.blocks[-1]
    after_call = "tool_use" in kinds and last.kind != kinds[-1]
    if after_call or (last.kind == "reasoning" and not WORD.search(last.text)):
        # words do not show whether the template leaves out the thought, or has the results before
        # the part that follows the call
        return
    same = common([*prompt.ids], before.ids) - len(before.prompt.ids)
    found = setup.tokenizer.decode(output.ids[:same])
    assert same >= tokens_received(output, setup), (output.text, prompt.text, found)


def cut_everywhere(setup: ModelSetup, choose: Choices, step: int) -> None:
    client = CLIENTS[choose.of(ORDERED)]
    first = PlayedSession(setup, choose)
    model = first.model
    prompt = first.prompt(client)
    ids = model.write(prompt)
    for size in sorted({*range(1, len(ids) + 1, step), len(ids)}):
        output = model.read(prompt, ids[:size], FinishReason.LENGTH)
        ledger = empty_ledger(setup)
        for entry in output.entries:
            ledger.add(entry)
        later = sent_back(output.blocks, first.dialogue)
        following = prompt_of(client, later, setup, ledger)
        check(Before(prompt, output), following, first)
        answer = model.answer(following)
        rebuilt = empty_ledger(setup)
        for entry in (*output.entries, *answer.entries):
            ledger.add(entry)
            rebuilt.add(entry)
        later = sent_back(answer.blocks, later)
        kept = prompt_of(client, later, setup, ledger)
        assert [*prompt_of(client, later, setup, rebuilt).ids] == [*kept.ids]


@in_sessions(FORMS)
def test_turn_that_ends_at_some_tokens_keeps_them(
    name: str, choose: Choices, models: Models
) -> None:
    cut_everywhere(models.of(name), choose, 9)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@in_sessions(TEMPLATES)
def test_turn_that_ends_at_any_token_keeps_its_tokens(
    name: str, choose: Choices, models: Models
) -> None:
    cut_everywhere(models.of(name), choose, 1)


@for_each(["", "\n", " \n "])
def test_call_that_the_end_of_a_turn_completes_keeps_its_tokens(
    blanks: str, models: Models
) -> None:
    """A parser of these calls reports their end only with what follows."""
    session = PlayedSession(models.of("no_generation_prompt"), Choices(b""))
    tokenizer, client = session.setup.tokenizer, CLIENTS["codex"]
    prompt = session.prompt(client)
    opening, arguments = "[TOOL_CALLS]look[ARGS]", '{"where": "w9x"}'
    ids = [*tokenizer.encode(opening)]
    ids += [id for character in arguments + blanks for id in tokenizer.encode(character)]
    output = session.model.read(prompt, ids, FinishReason.LENGTH)
    session.learn(output)
    following = session.prompt(client, sent_back(output.blocks, session.dialogue))
    kept = [*prompt.ids, *ids]
    assert [*following.ids[: len(kept)]] == kept
    assert following.text.startswith(f"{prompt.text}{opening}{arguments}</s>[TOOL_RESULTS]")
    assert tokenizer.decode(following.ids[len(kept) :]).startswith("</s>[TOOL_RESULTS]")


@pytest.mark.skipif("llama3_2" not in TEMPLATES, reason="trl is not installed")
def test_blank_before_a_cut_call_that_no_template_writes_is_left_out(models: Models) -> None:
    """One token has the blank and the beginning of a call that the client does not get."""
    session = PlayedSession(models.of("llama3_2"), Choices(b""))
    tokenizer, client = session.setup.tokenizer, CLIENTS["codex"]
    prompt = session.prompt(client)
    text, call = [*tokenizer.encode("w9x.")], [*tokenizer.encode(' {"')]
    assert len(call) == 1
    ids = [*text, *call, *tokenizer.encode("na")]
    output = session.model.read(prompt, ids, FinishReason.LENGTH)
    session.learn(output)
    following = session.prompt(client, sent_back(output.blocks, session.dialogue))
    kept = [*prompt.ids, *text]
    assert [*following.ids[: len(kept)]] == kept
    assert tokenizer.decode(following.ids[len(kept) :]).startswith("<|eot_id|>")


def test_separator_after_the_last_complete_call_is_left_out(models: Models) -> None:
    """The template closes the list of calls there."""
    session = PlayedSession(models.of("late_end"), Choices(b""))
    tokenizer, client = session.setup.tokenizer, CLIENTS["codex"]
    prompt = session.prompt(client)
    whole = [*tokenizer.encode('<|tools_prefix|>[{"look": {"where": "w9x"}}')]
    ids = [*whole, *tokenizer.encode(","), *tokenizer.encode(" ")]
    output = session.model.read(prompt, ids, FinishReason.LENGTH)
    assert [block.kind for block in output.blocks] == ["tool_use"]
    session.learn(output)
    following = session.prompt(client, sent_back(output.blocks, session.dialogue))
    kept = [*prompt.ids, *whole]
    assert [*following.ids[: len(kept)]] == kept
    rest = tokenizer.decode(following.ids[len(prompt.ids) :])
    assert rest.startswith('<|tools_prefix|>[{"look": {"where": "w9x"}}]<|tools_suffix|>')


@for_each(sorted(FORMS))
def test_token_across_the_last_part_and_a_cut_call_splits_and_doubles_nothing(
    name: str, models: Models
) -> None:
    """The first token ends a text and begins a call, which the client does not get, or a control
    token after the turn."""
    setup = models.of(name)
    call, tokenizer = setup.family.style.write_call("look", {"where": "w9x"}), setup.tokenizer
    token = next(
        id
        for id in range(tokenizer.backend.get_vocab_size())
        if (text := tokenizer.decode([id])).endswith(call[0])
        and text[:-1].strip()
        and text.isascii()
    )
    rest = [id for character in call[1:-4] for id in tokenizer.encode(character)]
    for size in range(0, len(rest) + 1, 3):
        session = PlayedSession(setup, Choices(b""))
        prompt = session.prompt(CLIENTS["codex"])
        output = session.model.read(prompt, [token, *rest[:size]], FinishReason.LENGTH)
        session.learn(output)
        later = sent_back(output.blocks, session.dialogue)
        following = session.prompt(CLIENTS["codex"], later)
        assert WORD.findall(tokenizer.decode(following.ids)) == WORD.findall(following.text)
        if all(block.kind == "text" for block in output.blocks):
            shown = output.blocks[-1].text.strip()
            end = following.text.rindex(shown) + len(shown)
            after = session.ledger.encoder.fragment(following.text[end:])
            assert [*following.ids[-len(after) :]] == [*after]
