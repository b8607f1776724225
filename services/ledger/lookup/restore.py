"""Restores turns that a client sent back: their messages as the model wrote them.

A turn that the client changed is not restored. Clients may spell arguments differently, repair the
name of a tool, join texts, and send reasoning sealed, joined or not at all: these are not changes.
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Message,
    Part,
    Reasoning,
    Text,
    ToolSpec,
    Unseal,
)
from services.ledger.turns.chain import parts_of
from services.ledger.turns.evidence import call_digest
from services.ledger.turns.keys import key_arguments, squeeze
from services.ledger.turns.tidied_calls import changes_directory
from services.ledger.turns.turn import RestoredTurn, Turn, TurnOutput
from services.ledger.turns.turn_reader import TurnReader
from services.templates.messages import thought_of

_JOINS = ("", "\n", "\n\n", " ")
"""Separators with which APIs and clients join all texts of a turn into one field."""


class Restorer:
    """Restores the turns of one request."""

    def __init__(
        self,
        reader: TurnReader,
        tools: list[ToolSpec],
        unseal: Unseal,
        *,
        with_reasoning: bool,
    ) -> None:
        """`tools`: as the model sees them. `with_reasoning`: whether reasoning is restored that the
        client did not send."""
        self._reader = reader
        self._tools = tools
        self._unseal = unseal
        self._with_reasoning = with_reasoning

    def messages(self, turn: Turn, sent: list[Message]) -> list[Message] | None:
        """A turn's messages as the model wrote them. None where the client changed the turn, or
        the ledger's turn cannot be read.

        `sent`: the turn as the client sent it back.
        """
        output = self._reader.output_of(turn, self._tools)
        if output is None:
            return None
        if turn.entry.context.started:
            return sent  # the client started this turn: its text is not all the model's
        restored = turn.restored
        if restored is None or not self._is_in_form(restored, sent):
            parts = self._parts(output, parts_of(sent), turn.entry.id_digests)
            if parts is None:
                return None
            message = Message("assistant", parts, sent[0].name)
            restored = RestoredTurn(message, sent, self._unseal, self._with_reasoning)
            turn.restored = restored
        return [restored.message]

    def _is_in_form(self, restored: RestoredTurn, sent: list[Message]) -> bool:
        """Whether a turn was restored for the form in which this request has it."""
        return (
            restored.with_reasoning == self._with_reasoning
            and restored.unseal == self._unseal
            and restored.sent == sent
        )

    def _parts(
        self, output: TurnOutput, sent: Sequence[Part], id_digests: Sequence[bytes]
    ) -> list[Part] | None:
        """The original turn's parts, if the client sent back that turn; None where the client
        changed it.

        Ids and kinds of calls are the client's, since its results refer to them; templates show the
        model's own ids. The key guarantees that the arguments of calls are equal, and texts nearly
        so. `id_digests`: the turn's (`LedgerEntry.id_digests`).
        """
        if not _are_same_texts(sent, output.parts):
            return None
        thoughts = _thoughts(sent, self._unseal)
        if thoughts and not _is_reasoning_of(thoughts, output):
            return None
        sent_calls = [part for part in sent if isinstance(part, Call)]
        calls = _restored_calls(output.calls, sent_calls, id_digests)
        if calls is None:
            return None

        following = iter(calls)
        parts: list[Part] = []
        for part in output.parts:
            if isinstance(part, Call):
                parts.append(next(following))
            elif isinstance(part, Text) or thoughts or self._with_reasoning:
                parts.append(part)
        return parts


def _restored_calls(
    originals: Sequence[Call], sent: Sequence[Call], id_digests: Sequence[bytes]
) -> list[Call] | None:
    """The original calls, each with the id with which the client sent it; None where the client
    changed one. `id_digests`: the turn's."""
    pairs = sent if len(sent) == len(originals) else _with_equal_calls(originals, sent, id_digests)
    restored: list[Call] = []
    for original, call in zip(originals, pairs, strict=False):
        restored_call = _restored_call(original, call, id_digests)
        if restored_call is None:
            return None
        restored.append(restored_call)
    return restored if len(restored) == len(originals) == len(pairs) else None


def _with_equal_calls(
    originals: Sequence[Call], sent: Sequence[Call], id_digests: Sequence[bytes]
) -> list[Call]:
    """The calls of a client that runs and sends back only one of equal calls (Hermes), with the
    others, under ids that no result has. Empty where the calls' own ids do not show that it did."""
    call_digests = id_digests[1 : 1 + len(originals)]  # the first is the turn's
    sent_by_digest = {call_digest(call.call_id): call for call in sent}
    if len(sent_by_digest) < len(sent) or not sent_by_digest.keys() <= set(call_digests):
        return []

    values = [
        (call.name.casefold(), key_arguments(call.name, call.arguments)) for call in originals
    ]
    sent_by_value = {
        value: sent_by_digest[digest]
        for value, digest in zip(values, call_digests, strict=False)
        if digest in sent_by_digest
    }
    calls: list[Call] = []
    for number, (value, digest) in enumerate(zip(values, call_digests, strict=False)):
        if digest in sent_by_digest:
            calls.append(sent_by_digest[digest])
        elif value in sent_by_value:
            equal = sent_by_value[value]
            calls.append(replace(equal, call_id=f"{equal.call_id}_{number}"))
    return calls


def _restored_call(original: Call, sent: Call, id_digests: Collection[bytes]) -> Call | None:
    """A call that the client sent, with the original's name and arguments; None where the client
    changed it."""
    if changes_directory(original.arguments, sent.arguments):
        return None
    name = sent.rendered_name
    if name != original.name:
        has_same_id = call_digest(sent.call_id) in id_digests
        if name.casefold() != original.name.casefold() and not has_same_id:
            return None
        sent = replace(sent, name=original.name, namespace=None)
    arguments = sent.arguments if sent.kind == "custom" else original.arguments
    return replace(sent, arguments=arguments, original_id=original.original_id)


def _are_same_texts(sent: Sequence[Part], original: Sequence[Part]) -> bool:
    """Whether a client may have made the texts that it sent from the original ones."""
    return not _joined_texts(sent).isdisjoint(_joined_texts(original))


def _joined_texts(parts: Sequence[Part]) -> set[str]:
    """All texts that a field may have in which a client joined the texts of these parts."""
    texts = [part.text for part in parts if isinstance(part, Text) and part.text.strip()]
    if len(texts) < 2:
        return {"".join(texts).strip()}
    bare = [text.strip() for text in texts]
    joined = {join.join(texts).strip() for join in _JOINS}
    joined.update(join.join(bare) for join in _JOINS)
    return joined


def _thoughts(parts: Sequence[Part], unseal: Unseal) -> list[str]:
    """The reasoning that a client sent, opened where it is sealed."""
    thoughts = [thought_of(part, unseal) or "" for part in parts if isinstance(part, Reasoning)]
    return [thought for thought in thoughts if thought.strip()]


def _is_reasoning_of(thoughts: Sequence[str], output: TurnOutput) -> bool:
    """Whether a client sent the turn's reasoning: all of it, however joined, or some of its blocks
    whole."""
    original = [squeeze(part.text or "") for part in output.parts if isinstance(part, Reasoning)]
    sent = [squeeze(thought) for thought in thoughts]
    return "".join(sent) == "".join(original) or all(thought in original for thought in sent)
