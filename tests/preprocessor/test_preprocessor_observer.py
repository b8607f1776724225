"""The spans of an attempt: its preparation with the steps, and its placement with the refusals."""

from array import array
from types import SimpleNamespace
from typing import Any

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, ErrorKind, Invalid
from schemas.requests import TurnRequest
from services.ledger.lookup.match import Outcome
from services.ledger.prompt.prompts import EncodedPrompt, RenderedPrompt
from services.preprocessor.observer import AttemptObserver, PreprocessorObserver
from services.preprocessor.prompt.prompt_maker import Prompt
from tests.kit.process import FakeProcess
from tests.kit.scopes import RecordedScope

PROMPT = Prompt(
    rendered=RenderedPrompt(marked_text="hi", plain_text="hi"),
    encoded=EncodedPrompt(array("I", [1, 2, 3]), Outcome.REUSED, 2, None),
)


def observe(scope: RecordedScope) -> AttemptObserver:
    process: Any = FakeProcess()
    ledger: Any = SimpleNamespace(count=lambda encoded: None)
    request = TurnRequest("t", "frontend-1", Conversation("m", []), attempt=2)
    return AttemptObserver(PreprocessorObserver(process, ledger), request, scope)


def test_prepared_and_placed() -> None:
    scope = RecordedScope()
    attempt = observe(scope)
    for step in ("normalize", "restore", "normalize", "restore", "render", "encode"):
        attempt.step(step)
    attempt.prompt_made(PROMPT)
    attempt.held("lead", 0.5)
    attempt.refused("worker-1", ErrorInfo(ErrorKind.OVERLOADED, "full"))
    attempt.placed("worker-2", "parser-1")
    prepare, place = scope.children
    assert (prepare.name, place.name) == ("prepare", "place")
    assert prepare.events == ["strip", "ledger", "render", "encode"]
    assert prepare.attributes == {
        "turnwire.attempt": 2,
        "gen_ai.usage.input_tokens": 3,
        "turnwire.ledger.outcome": "reused",
        "turnwire.ledger.tokens": 2,
    }
    assert place.events == ["turnwire.refused"]
    assert place.attributes == {
        "turnwire.attempt": 2,
        "turnwire.held_for": "lead",
        "turnwire.held_s": 0.5,
        "turnwire.worker": "worker-2",
        "turnwire.parser": "parser-1",
    }


def test_failure_ends_the_preparation() -> None:
    scope = RecordedScope()
    attempt = observe(scope)
    attempt.step("normalize")
    assert attempt.failed(Invalid("no")).kind == ErrorKind.INVALID
    assert scope.names == ["prepare"]
    assert scope.children[0].error == ErrorKind.INVALID
    assert scope.children[0].events == ["strip"]


def test_cancellation_ends_the_placement() -> None:
    scope = RecordedScope()
    attempt = observe(scope)
    attempt.prompt_made(PROMPT)
    attempt.cancelled()
    assert scope.names == ["prepare", "place"]
    assert scope.children[1].attributes == {"turnwire.attempt": 2, "turnwire.cancelled": True}
