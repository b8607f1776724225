"""Folds the messages of a bus into sessions and turns, within a bound of memory. Pure.

Messages come decoded (`turnwire_tools.tap.messages`), in their order, with the time of their
arrival. Tokens and events may come twice or not at all: replays and repeats are dropped, and gaps
are marked.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import msgspec
from cachetools import LRUCache

from schemas import events, frames
from schemas.control import Cancel, Replay
from schemas.conversation import Client, Conversation
from schemas.events import Failed, Finish
from schemas.session import first_question
from services.ledger.difference import answers_in, content_of
from services.runtime.streams.turn_log import LoggedEvent, Verdict
from services.tokenization.block_keys import with_images
from turnwire_tools.inspector.difference import Decode, answer_parts, compare, computed_again
from turnwire_tools.inspector.prefill import PrefillRate
from turnwire_tools.inspector.turns import MAX_TEXT, Block, InspectedTurn, StoredPrompt
from turnwire_tools.tap.turns import CONTINUED

MAX_ALIKE = 16
"""Turns with one history that are kept as separate candidates."""
MAX_ANCESTORS = 2000
MIB = 1024 * 1024

_decode_context = msgspec.json.Decoder(frames.ParseContext).decode


class Fold:
    """The turns of a deployment."""

    def __init__(
        self, *, max_turns: int = 20_000, max_bytes: int = 256 * MIB, decode: Decode | None = None
    ) -> None:
        """`max_bytes`: for prompts that the next ones are compared with, and again for answers.
        `decode`: text of tokens."""
        self.turns: OrderedDict[str, InspectedTurn] = OrderedDict()
        """Turns by id, oldest first."""
        self.sessions: dict[str, list[str]] = {}
        """The turns of each session, by its first turn."""
        self.rates: defaultdict[str, PrefillRate] = defaultdict(PrefillRate)
        """Prefill rates by model."""
        self._watchers: dict[int, dict[str, None]] = {}
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._characters = 0
        """Characters of all blocks."""
        self._prompts: LRUCache[str, StoredPrompt] = LRUCache(max_bytes, lambda prompt: prompt.size)
        self._histories: LRUCache[int, list[str]] = LRUCache(8 * max_turns)
        """Turns by the history that the next request of their session has."""
        self._latest: LRUCache[int, str] = LRUCache(max_turns)
        """The newest turn by the key of a session's beginning."""
        self._agents: LRUCache[int, str] = LRUCache(max_turns)
        """The session by the key of the tenant and the client's own id of it."""
        self._titles: LRUCache[int, str] = LRUCache(max_turns)
        """Sessions of a background request that came before the first of its agent, by the same
        key."""
        self._decode = decode

    def take(self, message: Any, now: float, receiver: str = "") -> None:
        """Takes a message that came at this Unix time. `receiver`: the last part of its subject."""
        match message:
            case frames.EventFrame():
                for entry in message.entries:
                    if (turn := self.turns.get(entry.turn)) is not None:
                        self._events(turn, entry, now)
            case frames.TokenFrame():
                for token_entry in message.entries:
                    if (turn := self.turns.get(token_entry.turn)) is not None:
                        self._tokens(turn, token_entry, now)
            case frames.TurnRequest():
                self._request(message, now)
            case frames.GenerateRequest(turn=name) if message.parser and name in self.turns:
                self._generate(self.turns[name], message, now, receiver)
            case Cancel(turn=name) if name in self.turns:
                self._cancel(self.turns[name], message, now)
            case Replay():
                for position in message.streams:
                    if (turn := self.turns.get(position.turn)) is not None and not turn.has_ended:
                        text = (
                            f"{message.receiver} requests what follows position "
                            f"{position.block}/{position.offset}"
                        )
                        turn.mark(now, "replay", text, trouble=True)
                        self._changed(turn)

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

    def context(self, turn: InspectedTurn) -> frames.ParseContext | None:
        """How the turn's output is parsed, where that is still known."""
        prompt = self._prompts.get(turn.id)
        return None if prompt is None or not prompt.context else _decode_context(prompt.context)

    def _changed(self, turn: InspectedTurn) -> None:
        turn.again = sum(computed_again(turn))
        for names in self._watchers.values():
            names[turn.id] = None

    # -- requests
    # ----------------------------------------------------------------------------------------------

    def _request(self, request: frames.TurnRequest, now: float) -> None:
        if (turn := self.turns.get(request.turn)) is not None:
            self._next_attempt(turn, request, now)
            return
        conversation = request.conversation
        client = (conversation.client.user_agent or "").partition(" ")[0]
        turn = InspectedTurn(
            id=request.turn, time=now, model=conversation.model, client=client, session=request.turn
        )
        text = (
            f"{len(conversation.messages)} messages, {len(conversation.tools)} tools, by "
            f"{request.frontend}"
        )
        turn.mark(now, "received", text)
        self._place_in_session(turn, conversation)
        self._find_parent(turn, conversation.client)
        self.turns[turn.id] = turn
        self._changed(turn)
        self._prompts[turn.id] = StoredPrompt(conversation, frames.unpack_array(b""))
        while len(self.turns) > 1 and (
            len(self.turns) > self._max_turns or self._characters > self._max_bytes
        ):
            self._forget()

    def _next_attempt(self, turn: InspectedTurn, request: frames.TurnRequest, now: float) -> None:
        if request.attempt <= turn.attempt:
            return
        turn.attempt = request.attempt
        if turn.has_ended:
            turn.state, turn.ms, turn.cursor.ended = "received", None, False
        resume = f", continues after {len(request.resume) // 4} tokens" if request.resume else ""
        avoid = f", avoids {', '.join(request.avoid)}" if request.avoid else ""
        turn.mark(now, "attempt", f"attempt {request.attempt}{resume}{avoid}", trouble=True)
        self._changed(turn)

    def _place_in_session(self, turn: InspectedTurn, conversation: Conversation) -> None:
        """Finds the turn that this one follows, by its history."""
        keys, has_id = self._keys(conversation), bool(conversation.client.session)
        # Without a session id, a history without an answer may be that of any session.
        histories = reversed(keys if has_id else keys[1:])
        candidates = ((key, self._best(self._histories.get(key, ()))) for key in histories)
        key, previous = next((found for found in candidates if found[1] is not None), (0, None))
        if previous is not None and key != keys[-1]:
            # An answer that was never seen, or that the client changed: the newest turn is the one
            # before.
            previous = self._best(self.sessions[previous.session]) or previous
        elif previous is None and has_id and len(keys) > 1:  # its whole history changed
            previous = self.turns.get(self._latest.get(keys[0], ""))
        if previous is not None:
            turn.previous, turn.session = previous.id, previous.session
        names = self.sessions.setdefault(turn.session, [])
        turn.number = self.turns[names[-1]].number + 1 if names else 1
        names.append(turn.id)
        self._remember(keys[-1], turn.id)
        self._latest[keys[0]] = turn.id

    def _find_parent(self, turn: InspectedTurn, client: Client) -> None:
        """Finds the session of the agent that started this one. A session keeps its parent, which
        is older, so that there are no circles. Only the parent of a title may be younger: so far
        that session has nothing but titles, which start no agents."""
        caller = (
            client.session
            if client.kind == "background" and client.parent is None
            else client.parent
        )
        oldest = self.sessions[turn.session][0]
        turn.kind = client.kind
        known = self._agents.get(hash((client.tenant, caller)), "")
        turn.parent = known if oldest == turn.id else self.turns[oldest].parent
        own = hash((client.tenant, client.session))
        if client.kind == "background" and oldest == turn.id and not turn.parent:
            self._titles[own] = turn.session
        elif client.kind != "background" and client.session is not None:
            self._agents[own] = turn.session
            if (title := self._titles.pop(own, "")) != turn.session:
                for name in self.sessions.get(title, ()):
                    self.turns[name].parent = turn.session
                    self._changed(self.turns[name])

    def _keys(self, conversation: Conversation, *more: int) -> list[int]:
        """Returns a key for the history after each answer; the first one for none. `more`: hashes
        of further answers.

        Requests with a session id and the same tools and first question are of one session. Agents
        send the requests of their helpers under the same id. Without an id, the answers and the
        first question have to be the same: sessions may have answers that are alike.
        """
        client, question = conversation.client, first_question(conversation)
        tools = tuple(tool.name for tool in conversation.tools)
        start = hash((conversation.model, client.tenant, client.session or question))
        hashes = [
            *(hash(content_of(answer)) for answer in answers_in(conversation.messages)),
            *more,
        ]
        keys = list(accumulate(hashes, lambda state, answer: hash((state, answer)), initial=start))
        return [hash((start, question, tools)), *keys[1:]]

    def _best(self, names: Sequence[str]) -> InspectedTurn | None:
        """The newest turn that has an answer, else the newest."""
        kept = [self.turns[name] for name in names if name in self.turns]
        return max(kept, key=lambda turn: (turn.state == "finished", turn.time), default=None)

    def _remember(self, key: int, name: str) -> None:
        alike = self._histories.get(key, [])
        self._histories[key] = [*alike[1 - MAX_ALIKE :], name]

    def _generate(
        self, turn: InspectedTurn, request: frames.GenerateRequest, now: float, worker: str
    ) -> None:
        again = request.attempt == turn.placed_attempt and turn.worker != worker
        turn.placed_attempt = request.attempt
        turn.attempt, turn.worker, turn.parser = request.attempt, worker, request.parser
        turn.reused, turn.recall = (
            (request.reused, request.recall) if request.recall else (None, "")
        )
        if turn.placed_ms is None:
            turn.placed_ms = turn.ms_at(now)
        if turn.state == "received":
            turn.state = "placed"
        # Two images of one size have the same tokens, and are not the same prompt.
        ids = frames.unpack_array(with_images(request.prompt, request.images))
        turn.prompt = len(ids) or turn.prompt
        refused = ", after a refusal" if again else ""
        if request.held_for and not again:
            text = (
                f"{request.held_s:.3f} s, until {request.held_for} had computed the beginning of "
                "the prompt"
            )
            turn.mark(now - request.held_s, "held", text)
        turn.mark(now, "placed", f"{turn.prompt} tokens, on {worker}{refused}", trouble=again)
        prompt = self._prompts.get(turn.id)
        if prompt is not None and (not ids or prompt.ids != ids):
            prompt = StoredPrompt(prompt.conversation, ids, bytes(request.context))
            if prompt.size <= self._prompts.maxsize:
                self._prompts[turn.id] = prompt
            self._compare(turn, prompt)
        self._changed(turn)

    def _compare(self, turn: InspectedTurn, prompt: StoredPrompt) -> None:
        previous = self.turns.get(turn.previous)
        if previous is not None:
            before = self._prompts.get(previous.id)
            turn.difference = compare(
                turn, prompt, previous, before, ancestors=self.ancestors(turn), decode=self._decode
            )

    def _cancel(self, turn: InspectedTurn, cancel: Cancel, now: float) -> None:
        if turn.has_ended or cancel.reason in CONTINUED:
            return
        turn.mark(now, "cancel", cancel.reason, trouble=True)
        if cancel.reason != "failed":
            turn.state, turn.finish, turn.ms = "cancelled", cancel.reason, turn.ms_at(now)
        self._changed(turn)

    # -- tokens and events
    # ------------------------------------------------------------------------------------------

    def _tokens(self, turn: InspectedTurn, entry: frames.TokenEntry, now: float) -> None:
        if entry.attempt < turn.attempt:
            return
        have = len(turn.ids)
        if entry.at <= have:
            turn.ids.extend(entry.ids[have - entry.at :])
        if entry.cached is not None:
            turn.cached = entry.cached
        elif entry.held and turn.cached is None:
            turn.cached = entry.held
        if entry.ids:
            turn.output = max(turn.output, len(turn.ids))
            self._first(turn, now)
        self._changed(turn)

    def _first(self, turn: InspectedTurn, now: float) -> None:
        if turn.ttft_ms is None:
            turn.ttft_ms = turn.ms_at(now)
            turn.mark(now, "first")
            if not turn.has_ended:
                turn.state = "writing"

    def _events(self, turn: InspectedTurn, entry: frames.EventEntry, now: float) -> None:
        if turn.state == "finished":
            return
        for event in entry.events:
            if isinstance(event, events.Prepared):
                self._opened(turn, event, entry.attempt, now)
            elif not isinstance(event, events.HostedResults):
                accepted = turn.cursor.accept(event)
                if not isinstance(accepted, Verdict):
                    self._event(turn, accepted, now)
                elif accepted is Verdict.GAP and isinstance(event, Finish):
                    turn.incomplete = True
                    self._ended(turn, event, now)
        self._changed(turn)

    def _event(self, turn: InspectedTurn, event: LoggedEvent, now: float) -> None:
        match event:
            case events.BlockStart():
                self._first(turn, now)
                turn.blocks.append(
                    Block(event.kind, turn.ms_at(now), event.name or "", event.call_id or "")
                )
                turn.calls += event.kind == "tool_use"
            case events.Delta():
                self._first(turn, now)
                block = turn.blocks[-1]
                if block.length < MAX_TEXT:
                    block.text += event.text
                    self._characters += len(event.text)
                block.length += len(event.text)
            case events.Dispatch():
                turn.blocks[-1].dispatch_ms = turn.ms_at(now)
                turn.mark(now, "dispatch", f"{event.name} {event.call_id}")
            case events.BlockStop():
                block = turn.blocks[-1]
                block.end_ms, block.complete = turn.ms_at(now), event.complete
                cut = "" if event.complete else ", cut off"
                turn.mark(
                    now, "block", f"{block.name or block.kind}, {block.length} characters{cut}"
                )
            case events.Interrupted():
                text = (
                    f"{event.worker} after {len(event.token_ids) // 4} tokens: "
                    f"{event.error.message}"
                )
                turn.mark(now, "interrupted", text, trouble=True)
            case Finish() | Failed():
                self._ended(turn, event, now)

    def _opened(
        self, turn: InspectedTurn, event: events.Prepared, attempt: int, now: float
    ) -> None:
        """A parser has the stream. It sends this again with a replay."""
        if attempt < turn.attempt or turn.opened_by == (attempt, event.parser):
            return
        if turn.parser and event.parser != turn.parser:
            turn.mark(
                now, "takeover", f"{event.parser} parses in place of {turn.parser}", trouble=True
            )
        else:
            turn.mark(now, "opened", f"{event.parser} has the stream of {event.worker}")
        turn.opened_by = attempt, event.parser
        turn.prompt, turn.max_tokens = event.prompt_tokens, event.max_tokens
        if event.cached and turn.cached is None:
            turn.cached = event.cached
        turn.worker, turn.parser = event.worker or turn.worker, event.parser or turn.parser

    def _ended(self, turn: InspectedTurn, event: Finish | Failed, now: float) -> None:
        turn.ms = turn.ms_at(now)
        if isinstance(event, Failed):
            turn.state, turn.finish = "failed", f"{event.error.kind}: {event.error.message}"
            return
        usage = event.usage
        turn.state, turn.finish = "finished", str(event.reason)
        turn.prompt, turn.cached = usage.prompt or turn.prompt, usage.cached
        turn.output, turn.reasoning = usage.output, usage.reasoning
        del turn.ids[usage.output :]
        if turn.placed_ms is not None and turn.ttft_ms is not None and turn.attempt == 1:
            self.rates[turn.model].add(
                turn.prompt - turn.cached, (turn.ttft_ms - turn.placed_ms) / 1000
            )
        prompt = self._prompts.get(turn.id)
        if prompt is not None:
            # The next request of the session has this answer after this history.
            answer = hash(content_of(answer_parts(turn)))
            self._remember(self._keys(prompt.conversation, answer)[-1], turn.id)

    # -- memory
    # ----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drops the oldest turn."""
        name, turn = self.turns.popitem(last=False)
        self._characters -= sum(len(block.text) for block in turn.blocks)
        self._prompts.pop(name, None)
        for waiting in self._watchers.values():
            waiting.pop(name, None)
        names = self.sessions[turn.session]
        names.remove(name)
        if not names:
            del self.sessions[turn.session]
