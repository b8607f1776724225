"""The operation of Completions."""

from services.frontend.apis.completions import wire
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT
from services.frontend.apis.shared.shared_errors import openai_format

PATH = "/v1/completions"
_PARAMS = {
    "stop_sequences": "stop",
    "format": "structured_outputs",
    "messages": "prompt",
    "top_logprobs": "logprobs",
}


def _mount(mount: Mount) -> None:
    mount.add_turns(PATH, Completions(FINGERPRINT))


API = Api(
    name="Completions",
    title="OpenAI Chat Completions",
    errors=openai_format(_PARAMS),
    paths=("/v1/completions",),
    operations=(
        Operation(
            PATH,
            "Continue a text",
            body=wire.Body,
            example={"model": "your-model", "prompt": "Once upon a time", "max_tokens": 64},
            answer=wire.Answer,
            events=EVENTS,
        ),
    ),
    mount=_mount,
)
