"""The clients of the three APIs by name. A module has `PATH`, `COUNT_PATH`, `request` and `Reader`."""

from collections.abc import Mapping
from types import ModuleType

from turnwire_tools.clients import chat, messages, responses
from turnwire_tools.clients.answer import Api

CLIENTS: Mapping[Api, ModuleType] = {"messages": messages, "responses": responses, "chat": chat}
