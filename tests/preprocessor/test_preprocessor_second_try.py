"""The settings with which a broken call is decoded again."""

from typing import Any

from msgspec.structs import replace

from schemas.conversation import Conversation, Sampling
from schemas.events import BrokenCall
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import LimitedPrompt, assemble
from services.preprocessor.second_try import TEMPERATURE, second_try
from tests.kit.conversations import user
from tests.kit.every import for_rows

CALL = BrokenCall("unreadable", 40)


def prompt(setup: ModelSetup, **sampling: Any) -> LimitedPrompt:
    settings = Sampling(**{"max_tokens": 100, **sampling})
    return assemble(Conversation("m", [user("hi")], sampling=settings), setup)


def test_tokens_of_the_call_count(setup: ModelSetup) -> None:
    again = second_try(prompt(setup), CALL, ())
    assert (again.max_tokens, again.sampling.max_tokens) == (60, 60)
    assert not again.window_limited


@for_rows(
    [
        ({"temperature": 0.0}, {"temperature": TEMPERATURE}),
        ({"temperature": 0.01, "seed": 4}, {"temperature": TEMPERATURE, "seed": 5}),
        ({"temperature": 0.9, "seed": 2**63 - 1}, {"seed": 0}),
        ({"temperature": 1.0}, {}),
        ({"temperature": 1.0, "top_k": 1}, {"top_k": None}),
        ({"temperature": 1.0, "top_k": 5, "top_p": 0.9}, {}),
    ]
)
def test_sampling_changes_a_little(
    sampling: dict[str, Any], changes: dict[str, Any], setup: ModelSetup
) -> None:
    first = prompt(setup, **sampling)
    again = second_try(first, CALL, ("sampling", "seed"))
    assert again.sampling == replace(first.sampling, **{**changes, "max_tokens": 60})


def test_engine_without_sampling_gets_none(setup: ModelSetup) -> None:
    first = prompt(setup, temperature=0.0)
    assert second_try(first, CALL, ("prefix_cache",)).sampling.temperature == 0.0
