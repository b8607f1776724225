"""The types of the answer of Completions, and its operation."""

from typing import Any, Literal

from msgspec import Struct

from services.frontend.apis.completions import wire
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT, UsageAnswer
from services.frontend.apis.shared.shared_errors import OPENAI

PATH = "/v1/completions"


class AnswerChoice(Struct):
    """One of the answers."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Answer(Struct):
    """A text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageAnswer
    system_fingerprint: str


def _mount(mount: Mount) -> None:
    mount.add_turns(PATH, Completions(FINGERPRINT))


API = Api(
    name="Completions",
    title="OpenAI Chat Completions",
    errors=OPENAI,
    paths=("/v1/completions",),
    operations=(
        Operation(
            PATH,
            "Continue a text",
            body=wire.Body,
            example={"model": "your-model", "prompt": "Once upon a time", "max_tokens": 64},
            answer=Answer,
            events=EVENTS,
        ),
    ),
    mount=_mount,
)
