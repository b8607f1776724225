"""Samples of turns with made-up ids, and turns of messages that are lost, repeated and in
pieces."""

import json
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec import json as codec

from schemas.control import Cancel
from schemas.conversation import Client, Sampling, Text
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import UNKNOWN_WEIGHTS, Failed, FinishReason, Usage, WeightsSpan
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFinish, TokenFrame
from schemas.requests import GenerateRequest, ParseContext, TurnRequest
from schemas.token_ids import pack_ids
from services.cli.main import main
from services.rollouts.samples import Sampler
from tests.kit.conversations import assistant, conversation, user
from tests.kit.events import finish, text
from turnwire_tools.replay.replay_file import RecordedPrompt
from turnwire_tools.tap.turns import FollowedTurn, TurnFollower
from turnwire_tools.trajectories.command import sampled_turn

CONTEXT = codec.encode(ParseContext("m", "qwen3_coder", "f", 3))


Q, NEXT = ("Q",), ("Q", "text 1", "Q2")


class Rollout:
    """Turns with made-up ids."""

    def __init__(self) -> None:
        self.sampler = Sampler()
        self.count = 0

    def turn(
        self,
        prompt: list[int],
        output: list[int],
        history: tuple[str, ...] = Q,
        *,
        session: str | None = None,
        now: float = 0.0,
    ) -> None:
        """`history`: texts of the user and the model in turn; the last is the user's. The turn
        writes `text N`."""
        self.count += 1
        roles = (user, assistant)
        messages = [roles[n % 2](said) for n, said in enumerate(history)]
        asked = conversation(*messages, client=Client(session))
        name, placed = f"t{self.count}", RecordedPrompt(0.0, pack_ids(prompt))
        turn = FollowedTurn(name, 0.0, asked, placed=placed)
        turn.add_tokens(TokenEntry(name, 1, 0, output), 0.0)
        end = finish(1, usage=Usage(output=len(output)))
        turn.add_events(EventEntry(name, 1, [*text(0, f"text {self.count}"), end]), 0.0)
        self.sampler.add(sampled_turn(turn, now))

    def causes(self) -> list[tuple[str, str | None] | None]:
        """Cause of each sample, and the turn from which it departs."""
        departures = [one.departs for one in self.sampler.close()]
        return [None if one is None else (one.cause, one.turn) for one in departures]


def test_another_answer_to_the_same_history_is_a_retry_and_another_question_a_fork() -> None:
    rollout = Rollout()
    rollout.turn([1, 2], [3])
    rollout.turn([1, 2, 3, 4], [5], NEXT)
    rollout.turn([1, 2, 3, 4], [6], NEXT)
    rollout.turn([1, 2, 3, 9], [6], ("Q", "text 1", "Q3"))
    rollout.turn([1, 2], [8])
    assert rollout.causes() == [None, ("retry", "t2"), ("fork", "t1"), ("retry", "t1")]


def test_prompts_that_extend_are_one_sample() -> None:
    rollout = Rollout()
    rollout.turn([1, 2], [3, 4], now=10.0)
    rollout.turn([1, 2, 3, 4, 5], [6], NEXT, now=10.0)
    rollout.turn([7], [8], ("Other",), now=20.0)
    (sample,) = rollout.sampler.close(15.0)  # the session that is quiet
    assert sample.ids == [1, 2, 3, 4, 5, 6]
    assert sample.loss_mask == [0, 0, 1, 1, 0, 1]
    assert [(span.start, span.end) for span in sample.turns] == [(2, 4), (5, 6)]
    assert (sample.departs, sample.logprobs) == (None, None)
    assert [sample.id for sample in rollout.sampler.close()] == ["t3"]


@pytest.mark.parametrize(("sent", "cause"), [("text  1", "template"), ("text 0", "client")])
def test_changes_by_client_and_template_are_distinguished(sent: str, cause: str) -> None:
    rollout = Rollout()
    rollout.turn([1, 2], [3, 4, 5])
    rollout.turn([1, 2, 3, 9, 6], [7], ("Q", sent, "Q2"))
    first, second = rollout.sampler.close()
    assert (first.loss_mask, second.loss_mask) == ([0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1])
    assert second.departs is not None
    assert (second.departs.cause, second.departs.at, second.departs.turn) == (cause, 3, "t1")


def request(attempt: int = 1) -> TurnRequest:
    return TurnRequest("t", "f", conversation(), attempt)


def generate(attempt: int = 1, resume: tuple[int, ...] = ()) -> GenerateRequest:
    names = ("t", attempt, "m", pack_ids([1, 2]), "p", "f")
    return GenerateRequest(*names, Sampling(), [9], Raw(CONTEXT), pack_ids(resume))


def tokens(
    at: int,
    *ids: int,
    attempt: int = 1,
    stop: int | None = None,
    weights: tuple[WeightsSpan, ...] = (),
) -> TokenFrame:
    end = None if stop is None else TokenFinish(FinishReason.STOP, stop)
    entry = TokenEntry("t", attempt, at, list(ids), finish=end, weights=[*weights])
    return TokenFrame("w", 1, [entry])


def ended(count: int, attempt: int = 1) -> EventFrame:
    events = [*text(0, "hi"), finish(1, usage=Usage(output=count))]
    return EventFrame("p", 1, [EventEntry("t", attempt, events)])


def follow(*messages: object) -> tuple[list[FollowedTurn], int, int]:
    """The turns, and how many were dropped and have not ended."""
    follower = TurnFollower(whole=True)
    ended = [turn for message in messages for turn in follower.take(message, 5.0)]
    turns = [turn for turn in ended if turn.is_sequence]
    return turns, len(ended) - len(turns) + follower.cancelled, follower.unfinished


def test_repeats_are_dropped_and_the_end_token_is_kept() -> None:
    frames = (tokens(0, 3, 4), tokens(1, 4, 5), tokens(0, 3), tokens(3, stop=9))
    (turn,), _, _ = follow(request(), generate(), *frames, ended(4))
    assert (list(turn.prompt), list(turn.output)) == ([1, 2], [3, 4, 5, 9])
    assert (turn.stop_id, turn.logprobs) == (9, [])
    assert (turn.written, turn.time) == ([Text("hi")], 5.0)


def test_resumed_turn_keeps_its_tokens_and_restarted_turn_drops_them() -> None:
    again = (tokens(0, 3, 4, 5, attempt=2, stop=9), ended(4, 2))
    begun = (request(), generate(), tokens(0, 3, 4), request(2))
    restarted = (generate(2), tokens(0, 8, attempt=1), ended(3, attempt=1))
    for second in ((generate(2, resume=(3, 4)),), restarted):
        (turn,), _, _ = follow(*begun, *second, *again)
        assert list(turn.output) == [3, 4, 5, 9]


def test_versions_of_weights_are_those_of_the_worker_that_decoded() -> None:
    first = tokens(0, 3, 4, weights=(WeightsSpan(0, 7), WeightsSpan(1, 8)))
    unknown = (WeightsSpan(0, UNKNOWN_WEIGHTS), WeightsSpan(2, 9))
    again = tokens(0, 3, 4, 5, attempt=2, stop=9, weights=unknown)
    placed = request(), generate(), first, first, request(2)
    (turn,), _, _ = follow(*placed, generate(2, resume=(3, 4)), again, ended(4, 2))
    assert sampled_turn(turn, 0.0).weights == [(0, 7), (1, 8), (2, 9)]
    (turn,), _, _ = follow(*placed, generate(2), again, ended(4, 2))
    assert sampled_turn(turn, 0.0).weights == [(0, UNKNOWN_WEIGHTS), (2, 9)]


def test_versions_that_the_end_corrects() -> None:
    sent = tokens(0, 3, 4, 5, weights=(WeightsSpan(0, 7), WeightsSpan(2, 8)))
    end = TokenFinish(FinishReason.STOP, 9, weights=[WeightsSpan(1, 8)], experts="e.npy")
    frame = TokenFrame("w", 1, [TokenEntry("t", 1, 3, [], finish=end)])
    (turn,), _, _ = follow(request(), generate(), sent, frame, ended(4))
    sampled = sampled_turn(turn, 0.0)
    assert (sampled.weights, sampled.experts) == ([(0, 7), (1, 8)], "e.npy")


def test_turns_that_are_not_one_sequence_are_left_out() -> None:
    failed = EventFrame("p", 1, [EventEntry("t", 1, [Failed(ErrorInfo(ErrorKind.ENGINE, "x"))])])
    for messages in (
        (tokens(0, 3), failed),
        (tokens(0, 3), Cancel("t", 1, "hangup")),
        (ended(0),),
    ):
        assert follow(request(), generate(), *messages) == ([], 1, 0)
    assert follow(request(), generate(), tokens(1, 4), ended(2)) == ([], 0, 1)


def test_a_recording_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tap.jsonl"
    messages = {
        "turn.m.p": request(),
        "gen.m.w": generate(),
        "tok.p": tokens(0, 3, stop=9),
        "evt.f": ended(2),
    }
    lines = [
        {"time": 1.5, "subject": f"tw.v2.{name}", "payload": json.loads(codec.encode(one))}
        for name, one in messages.items()
    ]
    other = {"time": 1.0, "subject": "tw.v2.ledger.m", "payload_b64": "AA=="}
    unended = {**lines[0], "payload": lines[0]["payload"] | {"turn": "u"}}
    path.write_text("".join(json.dumps(line) + "\n" for line in [other, *lines, unended]))
    assert main(["trajectories", str(path)]) == 0
    out, err = capsys.readouterr()
    (sample,) = map(json.loads, out.splitlines())
    assert (sample["ids"], sample["loss_mask"]) == ([1, 2, 3, 9], [0, 0, 1, 1])
    assert sample["turns"][0]["blocks"] is None
    assert "1 have not ended" in err


def test_version_that_begins_with_the_end_token() -> None:
    sent = tokens(0, 3, 4, weights=(WeightsSpan(0, 7),))
    end = tokens(2, stop=9, weights=(WeightsSpan(2, 8),))
    (turn,), _, _ = follow(request(), generate(), sent, end, ended(3))
    assert sampled_turn(turn, 0.0).weights == [(0, 7), (2, 8)]
