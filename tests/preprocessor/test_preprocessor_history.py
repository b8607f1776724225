"""A prompt rendered in parts is the template's own, in any order of requests; and it costs its new turns only."""

import concurrent.futures
import random
from dataclasses import replace as changed
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from schemas.conversation import Call, Client, Conversation, Reasoning, Result, Text, Thinking, ToolSpec, Turn
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.assembly import assemble
from services.preprocessor.prompt.history import TAIL, History
from services.preprocessor.prompt.locality import difference, open_history, session
from services.runtime.branch_cache import BRANCHES
from services.templates.chat_template import ChatTemplate, Message
from services.templates.messages import adapt
from services.templates.probe import probe
from services.templates.thinking import template_variables
from services.templates.traits import TemplateTraits
from tests.conftest import examples
from tests.templates.adapting import call, result, said, user

ROOM = 64 << 20
CHATML = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
@@{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chatml_with(more: str) -> str:
    """ChatML that writes something more behind each message."""
    return CHATML.replace("@@", more)


DROPS = """
{%- set ns = namespace(last=0) -%}
{%- for message in messages %}{% if message.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.index0 > ns.last %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
UNUSUAL = {
    "counts messages at the front": "{{ messages | length }}" + chatml_with(""),
    "counts messages at the end": chatml_with("") + "{{ messages | length }}",
    "numbers messages": chatml_with("{{ loop.index }}\n"),
    "marks every third message": chatml_with("{% if loop.index % 3 == 0 %}third{% endif %}\n"),
    "quotes the first answer at the end": chatml_with("")
    + "{% for message in messages if message.role == 'assistant' %}{% if loop.first %}{{ message.content }}{% endif %}{% endfor %}",
    "quotes the message three before": chatml_with(
        "{% if loop.index > 3 %}{{ messages[loop.index0 - 3].content }}{% endif %}"
    ),
    "says how much was said": chatml_with("") + "{{ messages | map(attribute='content') | join('') | length }}",
    "shows the newest first": "{% for message in messages | reverse %}{{ message.role }}{{ message.content }}{% endfor %}",
    "shows the last five": "{% for message in messages[-5:] %}{{ message.role }}{{ message.content }}{% endfor %}",
}


LOCAL_ENOUGH = {"quotes the message three before"}


class Watched:
    """A template, and how many messages it was given each time."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.rendered: list[int] = []

    def render(self, messages: list[Message], **how: Any) -> str:
        self.rendered.append(len(messages))
        return self.template.render(messages, **how)


@pytest.fixture(scope="module")
def chatml(demo_tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    return ChatTemplate(demo_tokenizer, chatml_with(""))


@pytest.fixture(scope="module")
def traits(chatml: ChatTemplate) -> TemplateTraits:
    return probe(chatml)


def in_parts(history: History, template: Any, traits: TemplateTraits, conversation: Conversation) -> str:
    variables = template_variables(conversation, traits, defaults={}, own=conversation.template_kwargs)
    known = history.find(conversation, variables)
    adapted = adapt(conversation, traits, template, prefix=known.adapted if known is not None else None)
    assert adapted.messages == adapt(conversation, traits, template).messages
    text, stable, keep = history.render(conversation, adapted, variables, known)
    kept = keep() if keep is not None else None
    assert stable is None or text.startswith(stable.text)
    assert kept is None or text.startswith(kept.text)
    return text


def whole(template: Any, traits: TemplateTraits, conversation: Conversation) -> str:
    variables = template_variables(conversation, traits, defaults={}, own=conversation.template_kwargs)
    adapted = adapt(conversation, traits, template)
    return str(template.render(adapted.messages, tools=adapted.tools, variables=variables))


# -- what templates allow ---------------------------------------------------------------------------------------


def test_every_published_template_can_be_rendered_in_parts(real_template: ChatTemplate) -> None:
    assert difference(real_template, probe(real_template), sessions=3, seed="test") is None


@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_template_that_looks_all_around_is_rendered_whole(kind: str, demo_tokenizer: PreTrainedTokenizerBase) -> None:
    template = ChatTemplate(demo_tokenizer, UNUSUAL[kind])
    traits = probe(template)
    history = open_history(template, traits, ROOM)
    for number in range(4):
        for conversation in session(random.Random(f"{kind}{number}"), number):
            assert in_parts(history, template, traits, conversation) == whole(template, traits, conversation)
    if kind not in LOCAL_ENOUGH:
        assert history.off is not None or history.parts < history.wholes


def test_what_is_turned_off_stays_off(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=ROOM)
    requests = list(session(random.Random(1), 1))
    for conversation in requests:
        in_parts(history, chatml, traits, conversation)
    assert history.parts > 0
    assert history.size > 0
    history.turn_off("it was wrong")
    done = history.parts
    for conversation in requests:
        assert in_parts(history, chatml, traits, conversation) == whole(chatml, traits, conversation)
    assert (history.parts, history.size, history.off) == (done, 0, "it was wrong")


# -- what it costs ----------------------------------------------------------------------------------------------


def loop(turns: int, every: int = 10**9) -> list[Conversation]:
    """A session of one request a turn; the user speaks first and after so many turns again."""
    history = [user("please do it")]
    found = []
    for number in range(turns):
        if number % every == every - 1:
            history = [*history, said(Reasoning(f"so{number}"), Text(f"answer {number}")), user(f"go on {number}")]
        else:
            spoken = said(
                Reasoning(f"thought {number}"), Text(f"text {number}"), call("run", f'{{"n": {number}}}', f"c{number}")
            )
            history = [*history, spoken, result(f"result {number}", f"c{number}")]
        found.append(Conversation("m", history, system=[Text("Be brief.")], tools=[ToolSpec("run")]))
    return found


@pytest.mark.parametrize("source", [chatml_with(""), DROPS], ids=["keeps", "drops"])
@pytest.mark.parametrize("every", [10**9, 5, 1])
def test_a_long_session_costs_the_same_at_every_turn(
    source: str, every: int, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    template = ChatTemplate(demo_tokenizer, source)
    traits = probe(template)
    watched = Watched(template)
    history = History(watched, traits, max_bytes=ROOM)
    most: list[int] = []
    for conversation in loop(200, every):
        watched.rendered.clear()
        text = in_parts(history, watched, traits, conversation)
        most.append(sum(watched.rendered))
        assert text == whole(template, traits, conversation)
    assert max(most[20:]) <= 6 * TAIL
    assert sum(most[180:]) <= 1.5 * sum(most[20:40])


def test_a_user_who_ends_a_long_loop_has_it_rendered_once(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    template = ChatTemplate(demo_tokenizer, DROPS)
    traits = probe(template)
    watched = Watched(template)
    history = History(watched, traits, max_bytes=ROOM)
    requests = loop(130, 60)
    costs = []
    for conversation in requests:
        watched.rendered.clear()
        assert in_parts(history, watched, traits, conversation) == whole(template, traits, conversation)
        costs.append(sum(watched.rendered))
    assert [number for number, cost in enumerate(costs) if cost > 6 * TAIL] == [59, 119]


def test_sessions_that_begin_alike_are_known_side_by_side(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=ROOM)
    first, second = loop(40), loop(40, 4)
    for one, other in zip(first, second, strict=True):
        for conversation in (one, other):
            assert in_parts(history, chatml, traits, conversation) == whole(chatml, traits, conversation)
    assert history.parts > 60


def test_tenants_share_nothing(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=ROOM)
    conversation = loop(20)[-1]
    in_parts(history, chatml, traits, conversation)
    assert history.find(conversation, {}) is not None
    other = Conversation("m", conversation.turns, conversation.system, conversation.tools, client=Client(tenant="b"))
    assert history.find(other, {}) is None


# -- any order --------------------------------------------------------------------------------------------------

words = st.sampled_from(
    ["a", "b c", "<|im_end|>\n<|im_start|>user\nhi", "</think>", "think", "", " ", "é漢\U0001f642", "\n\n"]
)


@st.composite
def turn_pairs(draw: st.DrawFn, number: int) -> list[Turn]:
    parts: list[Any] = [Reasoning(draw(words))] if draw(st.booleans()) else []
    if draw(st.integers(0, 3)) == 0:
        return [said(*parts, Text(draw(words))), user(draw(words))]
    ids = [f"c{number}x{at}" for at in range(draw(st.integers(1, 3)))]
    for call_id in ids:
        if draw(st.booleans()):
            parts.append(Text(draw(words)))
        parts.append(Call(call_id, "run", f'{{{{"a": {draw(st.integers(0, 9))}}}}}'))
    results = [Turn("tool", [Result(call_id, [Text(draw(words))])]) for call_id in ids]
    return [said(*parts), *results, *([user(draw(words))] if draw(st.integers(0, 5)) == 0 else [])]


@settings(max_examples=examples(25))
@given(data=st.data(), room=st.sampled_from([0, 60_000, ROOM]), tail=st.sampled_from([2, 5, TAIL]))
def test_requests_in_any_order(
    data: st.DataObject, room: int, tail: int, chatml: ChatTemplate, traits: TemplateTraits
) -> None:
    """Several sessions in turn, which grow, go back, branch, and change their system prompt, tools or thinking."""
    history = History(chatml, traits, max_bytes=room, tail=tail)
    sessions: list[list[Turn]] = [[user("hello")], [user("hello")], [user("other")]]
    for number in range(data.draw(st.integers(5, 25))):
        at = data.draw(st.integers(0, len(sessions) - 1))
        turns = sessions[at]
        action = data.draw(st.integers(0, 9))
        if action == 0:
            turns = turns[: data.draw(st.integers(1, len(turns)))]
        elif action == 1:
            turns = list(sessions[data.draw(st.integers(0, len(sessions) - 1))])
        for step in range(data.draw(st.integers(0, 4))):
            turns = [*turns, *data.draw(turn_pairs(100 * number + step))]
        sessions[at] = turns
        conversation = Conversation(
            "m",
            turns,
            system=[Text(data.draw(st.sampled_from(["S", "S", "S", "T"])))],
            tools=[ToolSpec("run")] if data.draw(st.integers(0, 5)) else [],
            thinking=Thinking("enabled" if data.draw(st.integers(0, 5)) else "disabled"),
        )
        assert in_parts(history, chatml, traits, conversation) == whole(chatml, traits, conversation)
        assert history.size <= room


@settings(max_examples=examples(15))
@given(data=st.data())
def test_ids_are_those_of_the_whole_text(data: st.DataObject, setup: ModelSetup) -> None:
    rendered_whole = History(setup.template, setup.traits, max_bytes=0)
    rendered_whole.turn_off("for comparison")
    plain = changed(
        setup, history=rendered_whole, encoder=setup.tokenizer.encoder("tokenizers", 0, setup.encoder.marks)
    )
    turns = [user("hello <|im_start|> there")]
    for number in range(14):
        turns = [*turns, *data.draw(turn_pairs(number))]
        conversation = Conversation("m", turns, system=[Text("Be brief. <|im_end|>")], tools=[ToolSpec("run")])
        prompt = assemble(conversation, setup, limit=False)
        assert prompt.ids == assemble(conversation, plain, limit=False).ids
        assert setup.tokenizer.decode(prompt.ids) == prompt.text
        assert prompt.text.startswith(whole(setup.template, setup.traits, conversation))


def test_a_call_id_that_comes_again_is_adapted_anew(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=ROOM)
    turns = loop(20)[-1].turns
    for again in ("c3", "c19"):
        conversation = Conversation(
            "m", [*turns, said(call("other", "{}", again)), result("x", again)], tools=[ToolSpec("run")]
        )
        in_parts(history, chatml, traits, Conversation("m", turns, tools=[ToolSpec("run")]))
        assert in_parts(history, chatml, traits, conversation) == whole(chatml, traits, conversation)


def test_a_result_whose_call_comes_later_is_adapted_anew(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=ROOM)
    turns: list[Turn] = [user("hi")]
    for number in range(8):
        turns += [said(Text(f"{number}")), result("early", "late" if number == 2 else f"x{number}"), user("go on")]
    in_parts(history, chatml, traits, Conversation("m", turns))
    grown = Conversation("m", [*turns, said(call("run", "{}", "late")), result("now", "late")])
    assert history.find(grown, {}) is not None
    assert in_parts(history, chatml, traits, grown) == whole(chatml, traits, grown)


def test_threads_share_a_history(chatml: ChatTemplate, traits: TemplateTraits) -> None:
    history = History(chatml, traits, max_bytes=300_000, tail=4)
    requests = [conversation for number in range(2 * BRANCHES) for conversation in loop(24, 3 + number)]
    random.Random(5).shuffle(requests)
    expected = [whole(chatml, traits, conversation) for conversation in requests]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda conversation: in_parts(history, chatml, traits, conversation), requests))
    assert found == expected
    assert history.size <= 300_000
