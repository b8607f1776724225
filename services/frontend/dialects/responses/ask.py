"""A Responses request, its history and the objects that it names, as a `Conversation`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from schemas.conversation import Conversation
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.document import Status, response_document
from services.frontend.dialects.responses.names import Names
from services.frontend.dialects.responses.output import ResponsesCollector
from services.frontend.dialects.responses.request import ResponsesRequest
from services.frontend.dialects.responses.stream import ResponsesStream
from services.frontend.dialects.responses.vault import Vault

Resolve = Callable[[str], Raw | None]
"""A stored item by its id."""


class ResponsesAsk(Struct, frozen=True):
    """One understood request."""

    request: ResponsesRequest
    conversation: Conversation
    notes: list[str]
    names: Names
    truncate: bool
    """`truncation: auto`: where the context window is too small, the oldest items may go."""
    compacting: bool
    """The answer is one compaction item: the summary that the model writes, sealed."""
    vault: Vault | None = None

    @property
    def conversations(self) -> Sequence[Conversation]:
        """The one conversation: a Response has one choice."""
        return (self.conversation,)

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.request.stream

    def renderer(self, reply: Reply) -> ResponsesStream:
        """The streamed answer."""
        raise NotImplementedError

    def collector(self, reply: Reply) -> ResponsesCollector:
        """The answer in one piece."""
        raise NotImplementedError

    def document(self, reply: Reply, status: Status) -> dict[str, Any]:
        """The Response object before there is any output: `queued`, or `cancelled` while it was."""
        return response_document(reply, self.request.echo, status=status)


def understand(
    request: ResponsesRequest,
    headers: Mapping[str, str],
    *,
    history: Sequence[Raw] = (),
    resolve: Resolve | None = None,
    vault: Vault | None = None,
    counting: bool = False,
    compacting: bool = False,
) -> ResponsesAsk:
    """The conversation of a request.

    `history`: the items of the chain that `previous_response_id` names, inputs and outputs in order; they come before
    the request's own. `resolve` finds the items that `references` name. `vault` opens compaction items, and seals a new
    one where the input ends in a `compaction_trigger` or `compacting` asks for one. `counting`: only the size of the
    prompt is wanted. Raises Invalid; NotFound for a reference that `resolve` does not know.
    """
    raise NotImplementedError
