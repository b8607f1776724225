"""What the tokens of an answer are charged."""

from prometheus_client import CollectorRegistry

from schemas.conversation import Client
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.metrics import FrontendMetrics
from tests.kit.bodies import MODEL
from tests.kit.events import USAGE, finish


def opened(choices: int) -> AnswerRecord:
    record = AnswerRecord(FrontendMetrics(CollectorRegistry()), 0.0)
    record.begin(MODEL, Client(), 0.0)
    record.choices_per_prompt = choices
    record.prompt_tokens = USAGE.prompt
    return record


def test_answer_that_was_given_up_is_charged_its_prompt_and_what_arrived() -> None:
    """Otherwise a client that hangs up decodes beyond the limit of its key."""
    record = opened(1)
    assert record.tokens == USAGE.prompt
    record.record_batch(18, 1.0)
    assert record.tokens == USAGE.prompt + 18


def test_choice_that_was_given_up_is_charged_what_arrived() -> None:
    record = opened(2)
    record.record_batch(18, 1.0, 0)
    record.record_batch(USAGE.output, 1.0, 1)
    record.record_end(finish(1), 1)
    assert record.tokens == USAGE.prompt - USAGE.cached + USAGE.output + 18
