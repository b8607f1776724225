"""Sessions with turns that come back in parts: each call with its result, in any order, or only
the first ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schemas.conversation import Conversation, ToolSpec
from schemas.events import BlockStop
from services.families import Family, open_parser
from services.preprocessor.prompt.prompt_maker import Prompt
from sessions.clients import CLIENTS, Block, Client, Dialogue
from sessions.turn_writer import WORD, Choices, Model, go_on
from sessions.walk import Before, Walk, common
from tests.ledger.walks import FORMS, TEMPLATES, Models, PlayedSession, in_sessions, renders_up_to

ORDERED = ("claude-code", "messages-without-thinking", "codex", "openclaw-responses")
APIS = (*ORDERED, "openclaw-chat", "plain-chat")


def groups_of(blocks: Sequence[Block], choose: Choices) -> list[list[Block]]:
    """The blocks of a turn in groups, each with a call, cut after calls."""
    groups: list[list[Block]] = [[]]
    for at, block in enumerate(blocks):
        groups[-1].append(block)
        more = any(later.kind == "tool_use" for later in blocks[at + 1 :])
        if block.kind == "tool_use" and more and choose.below(4):
            groups.append([])
    thoughts = [[block for block in group if block.kind == "reasoning"] for group in groups]
    # some APIs accept no call without reasoning
    if not any(thoughts[1:]) and choose.below(3) == 0:
        groups[1:] = [thoughts[0] + group for group in groups[1:]]
    if blocks[-1].kind == "tool_use" and choose.below(3) == 0:
        groups.reverse()
    return groups


def in_pairs(client: Client, choose: Choices) -> Client:
    """A client that sends each call of a turn back with its result, or a few at a time."""

    def send(dialogue: Dialogue) -> Conversation:
        said = [what for kind, what in dialogue.entries if kind == "results"]
        texts = dict(result for one in said for result in one)
        entries: list[tuple[str, Any]] = []
        for kind, what in dialogue.entries:
            calls = kind == "said" and any(block.kind == "tool_use" for block in what)
            for group in groups_of(what, choose) if calls else ():
                ids = [block.call_id for block in group if block.kind == "tool_use"]
                entries += [("said", group), ("results", [(id, texts[id]) for id in ids])]
            if not calls and kind != "results":
                entries.append((kind, what))
        return client(replace(dialogue, entries=entries))

    return send


@in_sessions(FORMS, TEMPLATES)
def test_turn_in_pairs_makes_the_same_prompt(name: str, choose: Choices, models: Models) -> None:
    client = CLIENTS[choose.of(APIS)]
    for step in Walk(models.of(name), choose, [client, in_pairs(client, choose)]):
        assert [*step.others[0].ids] == [*step.prompt.ids]


def first_calls(blocks: Sequence[Block], count: int) -> list[Block]:
    """The blocks of a turn up to the call with this number."""
    ends = [at + 1 for at, block in enumerate(blocks) if block.kind == "tool_use"]
    return [*blocks[: ends[count - 1]]]


@in_sessions(FORMS, TEMPLATES)
def test_first_calls_of_a_turn_keep_its_tokens_up_to_the_last_one(
    name: str, choose: Choices, models: Models
) -> None:
    """An agent may run only the first calls, or write something between them."""
    client = CLIENTS[choose.of(APIS)]
    session = PlayedSession(models.of(name), choose)
    dialogue, model = session.dialogue, session.model
    for _ in range(4):
        before = session.prompt(client)
        output = model.answer(before)
        session.learn(output)
        if len(output.calls) < 2 or not ends_by_itself(session.setup.family):
            go_on(dialogue, output, model)
            continue
        count = 1 + choose.below(len(output.calls) - 1)
        sent = first_calls(output.blocks, count)
        say(dialogue, sent, model)
        if choose.below(2):
            dialogue.entries.append(("user", model.say()))
            if choose.below(2):
                say(dialogue, output.blocks[len(sent) :], model)
        kept_up_to(Before(before, output), session.prompt(client), sent, session)


def ends_by_itself(family: Family) -> bool:
    """Whether a call ends with its own last character. Without a marker of its end, only what
    follows shows that nothing more belongs to it, and is among the tokens of the turn's
    beginning."""
    call = family.style.write_call("look", {"where": "w"})
    parser = open_parser(family.name, tools=[ToolSpec("look")])
    return any(isinstance(event, BlockStop) for event in parser.feed(call))


def say(dialogue: Dialogue, blocks: Sequence[Block], model: Model) -> None:
    """Adds blocks of a turn to a session, and the results of their calls."""
    dialogue.entries.append(("said", blocks))
    calls = [block for block in blocks if block.kind == "tool_use"]
    dialogue.entries.append(("results", [(block.call_id, model.say()) for block in calls]))


def kept_up_to(
    before: Before, prompt: Prompt, sent: Sequence[Block], session: PlayedSession
) -> None:
    """Checks that a prompt keeps the tokens of a turn up to the last word of the parts that were
    sent back, wherever the template has these words after the same text and as the model's own."""
    decode = session.setup.tokenizer.decode
    assert WORD.findall(decode(prompt.ids)) == WORD.findall(prompt.text)
    words = [word for block in sent for word in WORD.findall(block.text)]
    count = before.output.words.index(words[-1]) + 1
    if not renders_up_to(before, prompt, count, session.ledger.model):
        return
    ids, size = before.output.ids, 0
    while len(WORD.findall(decode(ids[:size]))) < count:
        size += 1
    same = common([*prompt.ids], before.ids)
    shown = before.output.text, prompt.text[len(before.head) :]
    assert same >= len(before.prompt.ids) + size, shown
