"""Random agent sessions through published templates: the next prompt begins with the ids of the
engine, wherever the template keeps the turn; where it does not, the prompt is the template's own
text."""

from services.preprocessor.model.model_setup import ModelSetup
from sessions.clients import CLIENTS, Client
from sessions.published import of_trl
from sessions.turn_writer import WORD, Choices
from sessions.walk import Step, Walk, common
from tests.ledger.walks import (
    OWN,
    PUBLISHED,
    QUICK,
    TEMPLATES,
    Models,
    decoded_words,
    in_sessions,
    tokens_received,
)


def check(step: Step, setup: ModelSetup, *, partly: bool = False) -> None:
    """`partly`: a turn that the template keeps may still be rendered again, as happens with a few
    templates."""
    ids, text = [*step.prompt.ids], step.prompt.text
    assert decoded_words(setup, ids) == WORD.findall(text)
    kept = step.newest_kept
    if kept is None or (ids == step.plain and not kept.whole_in(text, step.ends)):
        assert ids == step.plain
        return
    if partly and ids[: len(kept.ids)] != kept.ids:
        return
    assert ids[: len(kept.ids)] == kept.ids, (kept.output.text, text[len(kept.head) :])
    rest = ids[len(kept.ids) :]
    end = text[len(text) - len(setup.tokenizer.decode(rest)) :]
    assert rest == [*setup.encoder.encode(end)], "the text after it has other tokens than its own"
    assert (
        WORD.findall(text)[: -len(WORD.findall(end)) or None]
        == WORD.findall(kept.head) + kept.output.words
    )


def one_of(chance: Choices) -> Client:
    client: Client = chance.of(list(CLIENTS.values()))
    return client


@in_sessions(QUICK, TEMPLATES)
def test_each_prompt_extends_the_last_one_and_its_turn(
    name: str, chance: Choices, models: Models
) -> None:
    setup = models.of(name)
    for step in Walk(setup, chance, [one_of(chance)]):
        check(step, setup, partly=name in PUBLISHED and name not in of_trl())


@in_sessions(["qwen3_8", "gptoss", *OWN])
def test_every_client_gets_the_same_prompt(name: str, chance: Choices, models: Models) -> None:
    for step in Walk(models.of(name), chance, list(CLIENTS.values()), turns=4):
        for other in step.others:
            assert [*other.ids] == [*step.prompt.ids]


@in_sessions(["qwen3", "gemma4", *OWN])
def test_lost_entries_cost_tokens_and_nothing_else(
    name: str, chance: Choices, models: Models
) -> None:
    setup = models.of(name)
    for step in Walk(setup, chance, [one_of(chance)], lossy=True):
        assert decoded_words(setup, [*step.prompt.ids]) == WORD.findall(step.prompt.text)


@in_sessions(["qwen3_8", "gptoss", "glm4moe", "demo", *OWN])
def test_cut_turn_is_a_prefix_too(name: str, chance: Choices, models: Models) -> None:
    setup = models.of(name)
    for step in Walk(setup, chance, [one_of(chance)], cut=True):
        ids, text = [*step.prompt.ids], step.prompt.text
        assert decoded_words(setup, ids) == WORD.findall(text)
        assert step.prompt.encoded.outcome
        newest = step.before[-1]
        sent = any(
            block.kind != "reasoning" and block.text.strip() for block in newest.output.blocks
        )
        if step.prompt.encoded.outcome == "reused" and sent:
            same = common(ids, newest.ids)
            assert same >= len(newest.prompt.ids) + tokens_received(newest.output, setup)
            assert text.endswith(setup.tokenizer.decode(ids[same:]))
