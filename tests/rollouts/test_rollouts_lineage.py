"""The turns that samples go back to, in the words and with the ids that clients send."""

import json
from array import array

import pytest
from msgspec.structs import replace

from schemas.conversation import Call, Client, Text
from schemas.events import UNKNOWN_WEIGHTS, FinishReason, PromptImage, WeightsSpan
from services.rollouts.sample_lines import Parent, Sample, SampleWeights
from services.rollouts.sampled_turn import SampledTurn, digest_of
from services.rollouts.samples import Sampler

SESSION = Client("s")
SUMMARY = """1. Primary request:
   The user wants `<div>` in index.html.
2. Next step: run the tests."""


def turn(
    name: str,
    prompt: list[int],
    *written: Text | Call,
    question: str = "Do it.",
    answers: list[str] | None = None,
    client: Client = SESSION,
    time: float = 0.0,
) -> SampledTurn:
    """A turn with one output token; `answers`: texts."""
    return SampledTurn(
        id=name,
        time=time,
        ended=time,
        model="m",
        client=client,
        prompt=array("I", prompt),
        output=array("I", [9]),
        reason=FinishReason.STOP,
        written=[*written],
        answers=[digest_of([Text(answer)]) for answer in answers or ()],
        question=["<system-reminder>Be brief.</system-reminder>", question],
    )


def samples_of(*turns: SampledTurn, one_run: bool = True) -> list[Sample]:
    sampler = Sampler(one_run=one_run)
    for each in turns:
        sampler.add(each)
    return sampler.close()


def parents(*turns: SampledTurn, one_run: bool = True) -> list[Parent | None]:
    return [sample.parent for sample in samples_of(*turns, one_run=one_run)]


@pytest.mark.parametrize(
    ("written", "question"),
    [
        (
            f"<analysis>\nThey ask for it.\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>",
            "This session is being continued from an earlier conversation.\n\n"
            f"Summary:\n{SUMMARY}\n\nContinue without further questions.",
        ),
        (SUMMARY, f"Do it.\nAnother language model started to solve this problem:\n{SUMMARY}"),
        (f"{SUMMARY}\n", SUMMARY),
        (f"{SUMMARY}{'x ' * 4000}", f"{SUMMARY}{'x ' * 900}... truncated ...{'x ' * 900}"),
    ],
    ids=["claude", "codex", "server", "shortened"],
)
def test_conversation_that_begins_with_a_summary_goes_back_to_it(
    written: str, question: str
) -> None:
    first = turn("t1", [1], Text("I look."))
    summary = turn("t2", [1, 9, 2], Text(written), answers=["I look."])
    after = turn("t3", [3], question=question)
    later = turn("t4", [3, 9, 4], question=question, answers=["x"])
    assert parents(first, summary, after, later) == [None, Parent("t1", "t2", "compaction")]


def test_summary_as_the_first_answer_of_the_history() -> None:
    """opencode has the summary written under other instructions, and sends it as an answer."""
    first = turn("t1", [1], Text("I look."))
    summary = turn("t2", [2], Text(SUMMARY), question="Other.", answers=["I look."])
    after = turn("t3", [3], Text("On."), question="What did we do?", answers=[SUMMARY])
    head = turn("t4", [4], question="What did we do?", answers=[SUMMARY, "On."])
    departs, compaction, changed = parents(first, summary, after, head)[1:]
    assert departs == Parent("t1", "t1", "head")
    assert compaction == Parent("t2", "t2", "compaction")
    assert changed == Parent("t3", "t3", "head")


def test_summary_of_a_transcript_as_the_first_answer() -> None:
    first = turn("t1", [1], Text("I look."), question="Look at all the files\nof my project.")
    asked = "The conversation: [User]: Look at all the files\\nof my project. [Assistant]: I look."
    summary = turn("t2", [2], Text(SUMMARY), question=asked)
    after = turn("t3", [3], question="What did we do?", answers=[SUMMARY])
    assert parents(first, summary, after) == [None, None, Parent("t2", "t2", "compaction")]
    other = turn("t2", [2], Text(SUMMARY), question="Say something else entirely.")
    assert parents(first, other, after)[2] == Parent("t2", "t2", "head")


def test_what_was_written_with_calls_is_no_summary() -> None:
    spoken = turn("t1", [1], Text(SUMMARY), Call("c1", "Bash", "{}"))
    assert parents(spoken, turn("t2", [2], question=SUMMARY)) == [None, None]


def spawn(call_id: str, text: str) -> Call:
    return Call(call_id, "spawn_agent", json.dumps({"message": text, "count": [1, "two"]}))


def test_equal_calls_start_one_agent_each() -> None:
    caller = turn("t1", [1], spawn("c1", "Look around."), spawn("c2", "Look around."))
    agents = [
        turn(name, [number], question=" Look around.\n", client=Client(name), time=1.0)
        for number, name in enumerate(("t2", "t3"), 2)
    ]
    found = samples_of(caller, *agents)
    assert {one.parent.call_id for one in found[1:] if one.parent} == {"c1", "c2"}
    assert [one.kind for one in found] == ["main", "helper", "helper"]


def test_calls_of_other_sessions_are_not_taken_where_many_runs_are_followed() -> None:
    caller = turn("t1", [1], spawn("c1", "Look around."))
    stranger = turn("t2", [2], question="Look around.", client=Client("other"), time=1.0)
    assert parents(caller, stranger, one_run=False) == [None, None]
    assert parents(caller, stranger) == [None, Parent("t1", "t1", "helper", "c1")]
    other_tenant = replace(stranger, client=Client(tenant="b"))
    assert parents(caller, other_tenant) == [None, None]


@pytest.mark.parametrize(
    ("question", "call_id"),
    [
        ("Look around.", "c1"),
        ("<task from='main'>Look around in the whole house.</task>", "c2"),
        ("Something else.", None),
    ],
)
def test_agent_that_names_its_parent_goes_back_to_the_call_or_the_newest_turn(
    question: str, call_id: str | None
) -> None:
    calls = spawn("c1", "Look around."), spawn("c2", "Look around in the whole house.")
    caller = turn("t1", [1], *calls)
    agent = turn("t2", [2], question=question, client=Client("h", parent="s"), time=1.0)
    other = turn("t3", [3], spawn("c3", "Look around."), client=Client("other"))
    expected = [None, None, Parent("t1", "t1", "helper", call_id)]
    assert parents(other, caller, agent, one_run=False) == expected


def test_agent_may_end_before_the_turn_that_called_it() -> None:
    caller = turn("t1", [1], spawn("c1", "Look around."))
    agent = turn("t2", [2], question="Look around.", client=Client(), time=1.0)
    assert parents(agent, caller) == [Parent("t1", "t1", "helper", "c1"), None]


@pytest.mark.parametrize("asked_at", [-0.5, 0.5])
def test_title_and_recap_are_beside_their_session(asked_at: float) -> None:
    background = Client("s", kind="background")
    title = turn("t1", [5], client=background, question="A title for: Do it.", time=asked_at)
    first = turn("t2", [1], Text("I look."))
    recap = turn("t3", [1, 9, 6], client=background, answers=["I look."], time=1.0)
    second = turn("t4", [1, 9, 2], answers=["I look."], time=2.0)
    samples = samples_of(title, first, recap, second)
    assert [sample.parent for sample in samples] == [
        Parent("t2", "t2", "background"),
        None,
        Parent("t2", "t2", "background"),
    ]
    assert [len(sample.turns) for sample in samples] == [1, 2, 1]
    assert [sample.kind for sample in samples] == ["background", "main", "background"]


def test_other_image_with_the_same_ids_is_another_sample() -> None:
    first = replace(turn("t1", [1, 7, 7]), images=[PromptImage("a", 1, 2)])
    same = replace(
        turn("t2", [1, 7, 7, 9, 8, 8], answers=["x"]),
        images=[*first.images, PromptImage("b", 4, 2)],
    )
    other = replace(turn("t3", [1, 7, 7, 9, 8]), images=[PromptImage("c", 1, 2)])
    sample, another = samples_of(first, same, other)
    assert [(image.hash, image.at, image.tokens) for image in sample.images] == [
        ("a", 1, 2),
        ("b", 4, 2),
    ]
    assert (another.id, another.images[0].hash) == ("t3", "c")


def test_versions_of_weights_cover_the_decoded_ids() -> None:
    output = array("I", [9, 9, 9])
    first = replace(turn("t1", [1]), output=output)
    spans = [WeightsSpan(1, 4), WeightsSpan(2, 5), WeightsSpan(3, 6)]
    second = replace(turn("t2", [1, 9, 9, 9, 2]), output=output, weights=spans)
    resumed = [WeightsSpan(0, UNKNOWN_WEIGHTS), WeightsSpan(2, 6)]
    third = replace(turn("t3", [*second.prompt, *output]), output=output, weights=resumed)
    (sample,) = samples_of(first, second, third)
    assert sample.weights == [
        SampleWeights(1, 4, 0),
        SampleWeights(5, 6, 0),
        SampleWeights(6, 7, 4),
        SampleWeights(7, 8, 5),
        SampleWeights(8, 10, None),
        SampleWeights(10, 11, 6),
    ]
