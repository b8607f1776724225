"""What a turn's record has, by the turn's events."""

from array import array

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Sampling, Text
from schemas.events import (
    UNKNOWN_WEIGHTS,
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    OutputTokens,
    Prepared,
    PromptImage,
    TokenLogprob,
    TurnEvent,
    Usage,
    WeightsSpan,
)
from schemas.token_ids import pack_ids
from services.frontend.rollouts.turn_recorder import TurnRecorder
from services.rollouts.sampled_turn import SampleBlock, SampledTurn
from tests.frontend.rollouts.token_turns import AGENT, END, MARKUP, decoded, logprob_of, text_ids

TRACED = Sampling(return_token_ids=True, logprobs=0)
IMAGES = [PromptImage("abc", 1, 2)]


def recorded(steps: list[list[TurnEvent]]) -> SampledTurn:
    record = TurnRecorder("t1", Conversation("alias", []), "m", 1.0)
    record.begin(Prepared(3, 99, prompt_ids=pack_ids([7, 8, 9]), opening="<o>", images=IMAGES))
    for step in steps:
        record.add(step)
    last = steps[-1][-1]
    assert isinstance(last, Finish)
    return record.turn(last, 2.0)


def test_record_has_tokens_and_blocks() -> None:
    turn = recorded(decoded(AGENT, TRACED))
    thought, said, arguments = (text_ids(block.text) for block in AGENT)
    assert turn.prompt.tolist() == [7, 8, 9]
    assert turn.output.tolist() == [*thought, MARKUP, *said, MARKUP, *arguments, END]
    assert turn.logprobs == [logprob_of(at) for at in range(len(turn.output))]
    assert (turn.reason, turn.stop_id) == (FinishReason.STOP, END)
    assert (turn.model, turn.time, turn.ended) == ("m", 1.0, 2.0)
    assert (turn.opening, turn.images) == ("<o>", IMAGES)
    assert turn.written == [Text("I look now"), Call(AGENT[2].call_id or "", "look", AGENT[2].text)]
    assert turn.blocks == [
        SampleBlock("reasoning", 0, 4),
        SampleBlock("text", 5, 8),
        SampleBlock("tool_use", 9, 11, "look", AGENT[2].call_id),
    ]


def test_blocks_are_unknown_without_log_probabilities() -> None:
    turn = recorded(decoded(AGENT, Sampling(return_token_ids=True)))
    assert turn.blocks is None
    assert len(turn.output) == 12
    assert turn.logprobs == []


def test_versions_are_those_of_the_events() -> None:
    spans = [WeightsSpan(0, UNKNOWN_WEIGHTS), WeightsSpan(3, 2), WeightsSpan(7, 3)]
    assert recorded(decoded(AGENT, TRACED, spans)).weights == spans


def test_end_says_which_versions_and_experts_are_sure() -> None:
    """In place of all spans from the first of them on."""
    told = [WeightsSpan(0, 2), WeightsSpan(3, UNKNOWN_WEIGHTS)]
    steps = decoded(AGENT, TRACED, told)
    (end,) = (event for event in steps[-1] if isinstance(event, Finish))
    steps[-1][-1] = replace(end, weights=[WeightsSpan(3, 2), WeightsSpan(7, 3)], experts="t.npy")
    turn = recorded(steps)
    assert turn.weights == [WeightsSpan(0, 2), WeightsSpan(7, 3)]
    assert turn.experts == "t.npy"


def test_tokens_after_a_cut_are_left_out() -> None:
    end = Finish(FinishReason.STOP_STRING, 1, Usage(output=2), "c", tokens=3)
    tokens = [TokenLogprob(text, -0.5, at, index=at) for at, text in enumerate("abc")]
    events: list[TurnEvent] = [
        OutputTokens(0, [1, 2, 3], [*tokens]),
        BlockStart(0, "text"),
        Delta(0, 0, "ab", tokens[:2]),
        BlockStop(0, length=2),
        end,
    ]
    turn = recorded([events])
    assert turn.output == array("I", [1, 2])
    assert turn.logprobs == [-0.5, -0.5]


def test_tokens_of_a_broken_call_are_left_out() -> None:
    tokens = [TokenLogprob(text, -0.5, at, index=at) for at, text in enumerate("ab")]
    turn = recorded(
        [
            [
                OutputTokens(0, [1], [tokens[0]]),
                BlockStart(0, "text"),
                Delta(0, 0, "a", tokens[:1]),
            ],
            [
                OutputTokens(1, [2], [tokens[1]]),
                Delta(0, 1, "b", tokens[1:]),
                BlockStop(0, length=2),
            ],
            [Finish(FinishReason.STOP, 1, Usage(output=9, discarded=7), tokens=2)],
        ]
    )
    assert turn.output == array("I", [1, 2])
    assert turn.logprobs == [-0.5, -0.5]


def test_tokens_of_an_earlier_attempt_have_no_log_probability() -> None:
    token = TokenLogprob("b", -0.5, 1, index=1)
    turn = recorded(
        [
            [OutputTokens(0, [1], None), BlockStart(0, "text"), Delta(0, 0, "a")],
            [OutputTokens(1, [2], [token]), Delta(0, 1, "b", [token])],
            [BlockStop(0, length=2), Finish(FinishReason.LENGTH, 1, Usage(output=2), tokens=2)],
        ]
    )
    assert turn.logprobs == [None, -0.5]
    assert turn.blocks == [SampleBlock("text", 1, 2)], "from the first place that is known"
