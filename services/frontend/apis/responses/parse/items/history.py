"""Collects the messages of a conversation from items in order.

Consecutive items that the model made (reasoning, messages, calls) become one message with their
parts in order. Agents send all results after all calls: consecutive results become one message,
sorted by their calls, because many templates match them only by position. Ids of items never reach
a prompt.
"""

from collections.abc import Sequence

from schemas.conversation import (
    Call,
    Media,
    Message,
    Part,
    Result,
    ResultPart,
    Role,
    Text,
)
from schemas.errors import Invalid
from services.frontend.apis.shared.content import CallHistory


class ItemHistory(CallHistory):
    """The messages so far, and those that are not complete yet."""

    def __init__(self) -> None:
        super().__init__(pairing=False)
        self._parts: list[Part] = []
        """The parts of the assistant's message that is not complete yet."""
        self._ids: list[str] = []
        """The ids of that message's items without a part that has the id."""
        self._searches: list[int] = []
        """Positions among `_parts` of searches without results yet."""
        self._results: list[Result] = []
        """The results after the last complete message."""

    def pair(self, pairing: bool) -> None:
        """Sets whether a result without its call is an error from here on."""
        self._pairing = pairing

    def add(self, *parts: Part, id: str | None = None) -> None:
        """Adds an item that the model made. `id`: its id, if no part has it."""
        if self._results:
            self.close()
        self._parts += parts
        if id:
            self._ids.append(id)

    def add_call(self, call: Call) -> None:
        """Adds a call of the model."""
        self.add(call)
        self._number(call)

    def add_search(self, text: str) -> None:
        """Adds a search that another server ran, or this one: its results may follow."""
        self.add(Text(text))
        self._searches.append(len(self._parts) - 1)

    def add_hosted_calls(self, calls: Sequence[Call]) -> None:
        """Adds calls of tools that this server ran, in place of the searches without results. Calls
        between the searches get new numbers, by which their results are sorted."""
        self.add()
        if len(self._searches) == len(calls):
            for position, call in zip(self._searches, calls, strict=True):
                self._parts[position] = call
        else:
            self._parts += calls
        for part in self._parts:
            if isinstance(part, Call):
                self._number(part)

    def add_result(
        self,
        call_id: str | None,
        parts: Sequence[ResultPart],
        field_path: str,
        *,
        name: str | None = None,
        is_error: bool | None = None,
    ) -> None:
        """Adds the result of a call. `name`: of the tool, if the call is unknown. Raises Invalid
        for an unknown call, unless pairing is off."""
        called = self._name_of(call_id or "")
        if called is None and call_id is not None:
            self.refuse_unpaired(call_id, field_path)
        if self._parts:
            self.close()
        self._results.append(
            Result(call_id or "", list(parts), is_error=is_error, name=called or name)
        )

    def refuse_unpaired(
        self, call_id: str, field_path: str, output: str = "function call output"
    ) -> None:
        """Raises Invalid for an output without a call of its kind, unless pairing is off."""
        if self._pairing:
            raise Invalid(
                f"No tool call found for {output} with call_id {call_id}.",
                param=field_path,
                code="invalid_value",
            )

    def add_message(self, role: Role, parts: Sequence[Text | Media]) -> None:
        """Adds a message that the model did not make. Only a user's may be empty."""
        self.close()
        if parts or role == "user":
            self.messages.append(Message(role, [*parts]))

    def has_call(self, call_id: str | None) -> bool:
        """Whether a call with this id came before."""
        return call_id in self._call_names

    def close(self) -> None:
        """Completes the current message. Call it after the last item."""
        if self._parts:
            self.messages.append(Message("assistant", self._parts, ids=self._ids))
            self._parts = []
        self._ids = []
        self._searches = []
        if self._results:
            self._add_results(self._results)
            self._results = []

    def _number(self, call: Call) -> None:
        self._add_call(call, call.rendered_name)
