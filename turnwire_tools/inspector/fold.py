"""Folds the messages of a bus into sessions and turns, within a bound of memory. Pure.

Messages come decoded (`turnwire_tools.tap.messages`), in their order, with the time at which their
process sent them. Tokens and events may come twice or not at all: replays and repeats are dropped,
and gaps are marked.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from schemas import events, frames, requests, token_ids
from schemas.control import Cancel, Replay
from schemas.conversation import Conversation
from schemas.errors import ErrorInfo
from schemas.events import Failed, Finish, LoggedEvent
from services.preprocessor.prompt.preamble import strip_preamble
from services.runtime.streams.cursor import Verdict
from services.templates.messages import is_answer
from services.tokenization.block_keys import with_images
from services.tokenization.segments import TokenIds
from turnwire_tools.inspector import labels
from turnwire_tools.inspector.conversation import (
    Heads,
    addition,
    characters_of,
    latest_messages,
    share_texts,
)
from turnwire_tools.inspector.difference import (
    answer_parts,
    compare,
    computed_again,
    without_texts,
)
from turnwire_tools.inspector.prefill import PrefillRate
from turnwire_tools.inspector.prompts import PromptStore, StoredPrompt
from turnwire_tools.inspector.sessions import SessionFinder
from turnwire_tools.inspector.tokens import Vocabularies
from turnwire_tools.inspector.turns import ABANDONED, InspectedBlock, InspectedTurn
from turnwire_tools.tap.turns import CONTINUED

MAX_ANCESTORS = 2000
MIB = 1024 * 1024


class Fold:
    """The turns of a deployment."""

    def __init__(
        self,
        *,
        max_turns: int = 20_000,
        max_bytes: int = 256 * MIB,
        vocabularies: Vocabularies | None = None,
        texts: bool = True,
    ) -> None:
        """`max_bytes`: for prompts that the next ones are compared with, and again for texts.
        `vocabularies`: for the text of tokens. `texts`: False: no view has words of a
        conversation."""
        self.texts = texts
        self.turns: OrderedDict[str, InspectedTurn] = OrderedDict()
        """Turns by id, oldest first."""
        self.sessions: dict[str, list[str]] = {}
        """The turns of each session, by its first turn."""
        self.rates: defaultdict[str, PrefillRate] = defaultdict(PrefillRate)
        """Prefill rates by model."""
        self.dropped_until = 0.0
        """Unix time of the newest turn that was dropped; 0: none was."""
        self._watchers: dict[int, dict[str, None]] = {}
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._characters = 0
        """Characters of all questions, results and answers."""
        self._heads = Heads(texts=texts)
        self.prompts = PromptStore(max_bytes)
        self._finder = SessionFinder(self.turns, self.sessions, max_turns)
        self._vocabularies = vocabularies or Vocabularies()

    def take(self, message: Any, now: float, receiver: str = "") -> None:
        """Takes a message that was sent at this Unix time. `receiver`: the last part of its
        subject."""
        match message:
            case frames.EventFrame():
                for entry in message.entries:
                    self._events(entry, now)
            case frames.TokenFrame():
                for token_entry in message.entries:
                    self._tokens(token_entry, now)
            case requests.TurnRequest():
                self._request(message, now)
            case requests.GenerateRequest(turn=name, is_prefill=False) if name in self.turns:
                self._generate(self.turns[name], message, now, receiver)
            case Cancel(turn=name) if name in self.turns:
                self._cancel(self.turns[name], message, now)
            case Replay():
                self._replay(message, now)

    @contextmanager
    def watching(self) -> Iterator[dict[str, None]]:
        """The ids of all turns, newest first, to which that of every turn that changes is added.
        Take them out."""
        names = dict.fromkeys(reversed(self.turns))
        self._watchers[id(names)] = names
        try:
            yield names
        finally:
            del self._watchers[id(names)]

    def ancestors(self, turn: InspectedTurn) -> Iterator[InspectedTurn]:
        """The turns before this one, newest first, as far as they are kept."""
        for _ in range(MAX_ANCESTORS):
            previous = self.turns.get(turn.previous)
            if previous is None:
                return
            yield previous
            turn = previous

    def _changed(self, turn: InspectedTurn) -> None:
        turn.again = sum(computed_again(turn))
        for names in self._watchers.values():
            names[turn.id] = None

    # -- requests

    def _request(self, request: requests.TurnRequest, now: float) -> None:
        if request.turn in self.turns:
            known = self.turns[request.turn]
            if request.attempt > known.attempt:
                known.try_again(request, now)
                self._changed(known)
            return

        conversation = request.conversation
        client = conversation.client
        turn = InspectedTurn(
            id=request.turn,
            time=now,
            model=conversation.model,
            client=(client.user_agent or "").partition(" ")[0],
            session=request.turn,
            key=client.tenant or "",
        )
        messages = len(conversation.messages)
        tools = len(conversation.tools)
        turn.mark(now, "received", f"{messages} messages, {tools} tools, by {request.frontend}")

        prompt = self._read(conversation)
        self._finder.place(turn, prompt.conversation, prompt.keys)
        for title in self._finder.find_parent(turn, client):
            self._changed(title)
        self._add(turn, prompt)

        self.turns[turn.id] = turn
        self._changed(turn)
        self.prompts.put(turn.id, prompt)
        self._forget_oldest()

    def _read(self, conversation: Conversation) -> StoredPrompt:
        """Reads a request: of one that extends the newest of its session, only what it adds."""
        known = self.prompts.get(self._finder.newest(conversation))
        keys: list[int] = []
        characters = shared = 0
        if known is not None:
            conversation, shared = share_texts(conversation, known.conversation)
            before = known.conversation.messages
            if shared == len(before) and not (before and is_answer(before[-1])):
                keys, characters = known.keys, known.characters
            else:
                shared = 0
        return StoredPrompt(
            conversation,
            strip_preamble(conversation),
            token_ids.unpack_array(b""),
            keys=self._finder.history_keys(conversation, keys, shared),
            characters=characters + characters_of(conversation.messages[shared:]),
        )

    def _add(self, turn: InspectedTurn, prompt: StoredPrompt) -> None:
        """Finds what a request adds to its session."""
        before = None
        stored = self.prompts.get(turn.previous)
        if stored is not None:
            before = stored.stripped
        elif turn.previous in self.turns:
            before = latest_messages(prompt.stripped)

        head = self._heads.take(prompt.stripped)
        added = addition(prompt.stripped, before, head, prompt.characters, texts=self.texts)
        turn.addition = added
        words = labels.question(added.items)
        turn.asks = any(map(labels.is_asked, added.items))
        turn.label = words or labels.results_label(added.items)
        self._characters += added.characters

    def _generate(
        self, turn: InspectedTurn, request: requests.GenerateRequest, now: float, worker: str
    ) -> None:
        was_refused = request.attempt == turn.placed_attempt and turn.worker != worker
        turn.place(request, now, worker)
        if request.images:
            turn.addition = replace(turn.addition, images=request.images)

        # Two images of one size have the same tokens, and are not the same prompt.
        ids = token_ids.unpack_array(with_images(request.prompt, request.images))
        if ids:
            turn.prompt = len(ids)
        turn.held_for = request.held_for
        turn.held_s = request.held_s
        if request.held_for and not was_refused:
            text = (
                f"{request.held_s:.3f} s, until {request.held_for} had computed the beginning of "
                "the prompt"
            )
            turn.mark(now - request.held_s, "held", text)

        turn.tools = request.tool_tokens
        text = f"{turn.prompt} tokens"
        if turn.tools:
            text += f", {turn.tools} of tools"
        text += f", on {worker}"
        if was_refused:
            text += ", after a refusal"
        turn.mark(now, "placed", text, trouble=was_refused)

        self._store_prompt(turn, ids, bytes(request.context))
        self._changed(turn)

    def _store_prompt(self, turn: InspectedTurn, ids: TokenIds, context: bytes) -> None:
        """Keeps the ids of a prompt, and compares them with the previous one, unless that is
        done."""
        stored = self.prompts.get(turn.id)
        if stored is None or (ids and stored.ids == ids):
            return
        prompt = replace(stored, ids=ids, context=context)
        self.prompts.put(turn.id, prompt)
        self._compare(turn, prompt)

    def _compare(self, turn: InspectedTurn, prompt: StoredPrompt) -> None:
        previous = self.turns.get(turn.previous)
        if previous is None:
            return
        before = self.prompts.get(previous.id)
        decode = self._vocabularies.decode(turn.model) if self.texts else None
        ancestors = self.ancestors(turn)
        departure = compare(turn, prompt, previous, before, ancestors=ancestors, decode=decode)
        turn.difference = departure if self.texts else without_texts(departure)

    def _cancel(self, turn: InspectedTurn, cancel: Cancel, now: float) -> None:
        if turn.has_ended or cancel.reason in CONTINUED:
            return
        turn.mark(now, "cancel", cancel.reason, trouble=True)
        if cancel.reason != "failed":
            turn.abandon("cancelled", cancel.reason, now)
        self._changed(turn)

    def _replay(self, replay: Replay, now: float) -> None:
        for position in replay.streams:
            turn = self.turns.get(position.turn)
            if turn is None or turn.has_ended:
                continue
            place = f"{position.block}/{position.offset}"
            text = f"{replay.receiver} requests what follows position {place}"
            turn.mark(now, "replay", text, trouble=True)
            self._changed(turn)

    # -- tokens and events

    def _tokens(self, entry: frames.TokenEntry, now: float) -> None:
        turn = self.turns.get(entry.turn)
        if turn is None or turn.state in ABANDONED or entry.attempt < turn.attempt:
            return
        have = len(turn.ids)
        if entry.at <= have:
            turn.ids.extend(entry.ids[have - entry.at :])

        if entry.expected_cached:
            turn.expected = entry.expected_cached
        if entry.cached is not None:
            turn.cached = entry.cached
        elif entry.expected_cached and turn.cached is None:
            turn.cached = entry.expected_cached

        if entry.ids:
            turn.output = max(turn.output, len(turn.ids))
            if turn.decoded_ms is None:
                turn.decoded_ms = turn.ms_at(now)
            if not turn.has_ended:
                turn.state = "writing"
        self._changed(turn)

    def _events(self, entry: frames.EventEntry, now: float) -> None:
        turn = self.turns.get(entry.turn)
        if turn is None or turn.state in ("finished", "cancelled"):
            return
        turn.arrived = max(turn.arrived, entry.tokens)
        for event in entry.events:
            if isinstance(event, events.Prepared):
                turn.opened(event, entry.attempt, now)
            elif not isinstance(event, events.HostedResults):
                self._logged(turn, event, now)
        self._changed(turn)

    def _logged(self, turn: InspectedTurn, event: LoggedEvent, now: float) -> None:
        """Takes what is new of an event; the end counts even after a gap."""
        accepted = turn.cursor.accept(event)
        if not isinstance(accepted, Verdict):
            self._event(turn, accepted, now)
        elif accepted is Verdict.GAP and isinstance(event, Finish):
            turn.incomplete = True
            self._finished(turn, event, now)

    def _event(self, turn: InspectedTurn, event: LoggedEvent, now: float) -> None:
        match event:
            case events.BlockStart():
                turn.first_output(now)
                turn.blocks.append(
                    InspectedBlock(
                        event.kind, turn.ms_at(now), event.name or "", event.call_id or ""
                    )
                )
                if event.kind == "tool_use":
                    turn.calls += 1
            case events.Delta():
                turn.first_output(now)
                self._characters += turn.blocks[-1].add(event.text)
            case events.Dispatch():
                turn.blocks[-1].dispatch_ms = turn.ms_at(now)
                turn.mark(now, "dispatch", f"{event.name} {event.call_id}")
            case events.BlockStop():
                turn.end_block(event, now)
            case events.Interrupted():
                tokens = len(event.token_ids) // 4
                reason = _message(event.error, self.texts)
                if event.broken_call is not None:
                    reason = f": broken call, {event.broken_call.cause}"
                text = f"{event.worker} after {tokens} tokens{reason}"
                turn.mark(now, "interrupted", text, trouble=True)
            case Failed(error):
                turn.abandon("failed", f"{error.kind}{_message(error, self.texts)}", now)
            case Finish():
                self._finished(turn, event, now)

    def _finished(self, turn: InspectedTurn, event: Finish, now: float) -> None:
        usage = event.usage
        turn.ms = turn.ms_at(now)
        turn.state = "finished"
        turn.finish = str(event.reason)
        turn.prompt = usage.prompt or turn.prompt
        turn.cached = usage.cached
        turn.output = usage.output
        turn.reasoning = usage.reasoning
        del turn.ids[usage.kept :]

        first_ms = turn.decoded_ms or turn.ttft_ms
        if turn.placed_ms is not None and first_ms is not None and turn.attempt == 1:
            prefill_s = (first_ms - turn.placed_ms) / 1000
            self.rates[turn.model].add(turn.prompt - turn.cached, prefill_s)
        if turn.kind == "background" and self.texts:
            texts = (block.text for block in turn.blocks if block.kind == "text")
            turn.title = labels.title("".join(texts))
        self._finder.answered(turn, answer_parts(turn))

    # -- memory

    def _forget_oldest(self) -> None:
        """Drops turns until the others are within the bounds; the newest one stays."""
        while len(self.turns) > 1:
            characters = self._characters + self._heads.characters
            if len(self.turns) <= self._max_turns and characters <= self._max_bytes:
                return
            self._forget()

    def _forget(self) -> None:
        """Drops the oldest turn."""
        name, turn = self.turns.popitem(last=False)
        self.dropped_until = max(self.dropped_until, turn.time)
        self._characters -= turn.characters
        self._heads.release(turn.addition.head)
        self.prompts.drop(name)
        for waiting in self._watchers.values():
            waiting.pop(name, None)
        names = self.sessions[turn.session]
        names.remove(name)
        if not names:
            del self.sessions[turn.session]


def _message(error: ErrorInfo, texts: bool) -> str:
    """An error's message, which may quote the request."""
    return f": {error.message}" if texts else ""
