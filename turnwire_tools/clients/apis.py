"""Lists the clients of the three APIs by name."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from turnwire_tools.clients import chat, messages, responses
from turnwire_tools.clients.answer import Api
from turnwire_tools.clients.shared import AnswerReader


class ClientApi(Struct, frozen=True):
    """One API as a client sees it."""

    path: str
    count_path: str
    """The counting endpoint; empty if the API has none."""
    request: Callable[..., bytes]
    """Returns the body for a `Conversation`. `stream`: whether the answer is a stream."""
    reader: type[AnswerReader]
    """Reads one answer."""


CLIENTS: Mapping[Api, ClientApi] = {
    "messages": ClientApi(
        messages.PATH, messages.COUNT_PATH, messages.request, messages.MessagesReader
    ),
    "responses": ClientApi(
        responses.PATH, responses.COUNT_PATH, responses.request, responses.ResponsesReader
    ),
    "chat": ClientApi(chat.PATH, "", chat.request, chat.ChatReader),
}
