"""The operation of Chat Completions."""

from services.frontend.apis.chat import wire
from services.frontend.apis.chat.render import Settings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT
from services.frontend.apis.shared.shared_errors import CHAT

PATH = "/v1/chat/completions"


_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_EXAMPLE = {
    "model": "your-model",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}],
}


def _mount(mount: Mount) -> None:
    config = mount.config
    served = frozenset(config.served_tools)
    chat = Chat(Settings(config.reasoning_field, config.reasoning_details, FINGERPRINT, served))
    mount.add_turns(PATH, chat)


API = Api(
    name="Chat",
    title="OpenAI Chat Completions",
    errors=CHAT,
    paths=("/v1/chat", "/v1/embeddings"),
    operations=(
        Operation(
            PATH,
            "Create a chat completion",
            body=wire.Body,
            example=_EXAMPLE,
            answer=wire.Answer,
            events=EVENTS,
        ),
    ),
    mount=_mount,
)
