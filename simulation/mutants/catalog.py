"""Lists the mutants: faults in the code that recovers from lost messages, processes and
connections."""

from simulation.mutants.plant import Mutant

BUS = "services/runtime/nats/bus.py"
CONNECTION = "services/runtime/nats/connection.py"
REQUESTS = "services/runtime/nats/requests.py"
PROCESS = "services/runtime/process.py"
HEARTBEATS = "services/runtime/presence/heartbeats.py"
REGISTRY = "services/runtime/presence/registry.py"
LINKS = "services/runtime/streams/links.py"
FRAMES = "services/runtime/streams/frames.py"
CURSOR = "services/runtime/streams/cursor.py"
WORKER = "services/worker/service.py"
OPENER = "services/worker/turn_opener.py"
ENGINE_REQUESTS = "services/worker/engine_requests.py"
OUTBOX = "services/worker/output/outbox.py"
TOKEN_STREAM = "services/worker/output/token_stream.py"
SHARDS = "services/worker/output/shards.py"
ENGINE = "services/worker/engine.py"
ANSWER = "services/worker/engines/remote/answer.py"
PARSER = "services/parser/service.py"
TURN_PARSE = "services/parser/turn_parse.py"
FAST_PATH = "services/parser/fast_path.py"
TURN_STREAM = "services/parser/turn_stream.py"
EVENT_OUTBOX = "services/parser/event_outbox.py"
REFUSALS = "services/preprocessor/refusals.py"
HOLDING = "services/preprocessor/routing/holding.py"
TURN_TABLE = "services/frontend/gateway/turn_table.py"
ATTEMPTS = "services/frontend/gateway/attempts.py"
EVENT_RECEIVER = "services/frontend/gateway/event_receiver.py"
WATCH = "services/frontend/gateway/process_watch.py"
STAGE_WAIT = "services/frontend/gateway/stage_wait.py"
STORE = "services/frontend/stored/shared.py"

LINK_MUTANTS = [
    Mutant(
        "acknowledges one frame too few",
        LINKS,
        "        self.credit_due = False\n        return self.last\n",
        "        self.credit_due = False\n        return self.last - 1\n",
    ),
    Mutant(
        "acknowledges one frame too many",
        LINKS,
        "        self.credit_due = False\n        return self.last\n",
        "        self.credit_due = False\n        return self.last + 1\n",
    ),
    Mutant(
        "keeps the last acknowledged frame under way",
        LINKS,
        "while sizes and sizes[0][0] <= seq:",
        "while sizes and sizes[0][0] < seq:",
    ),
    Mutant(
        "does not notice a frame that is missing", LINKS, "return seq > expected", "return False"
    ),
    Mutant(
        "ignores the number that a heartbeat announces",
        LINKS,
        "lost = self._announced > self.last",
        "lost = False",
    ),
    Mutant(
        "never repeats a replay request",
        LINKS,
        "lost = number < self._replay_due",
        "lost = False",
    ),
    Mutant(
        "never gives up the link of a sender that gave it up",
        LINKS,
        "return self._absences >= ABSENCES",
        "return False",
    ),
    Mutant(
        "does not grant lost credit again",
        FRAMES,
        "        link.acknowledged(peer.unacknowledged.get(me))\n",
        "",
    ),
    Mutant(
        "rewinds for a replay, and sends nothing",
        FRAMES,
        "        self._source.credited(replay.receiver, link.delivered)\n"
        "        self.schedule(replay.receiver)\n",
        "        self._source.credited(replay.receiver, link.delivered)\n",
    ),
]

CURSOR_MUTANTS = [
    Mutant(
        "requests a replay from one character too far",
        CURSOR,
        "return StreamPosition(turn, attempt, length, block, self.tokens)",
        "return StreamPosition(turn, attempt, length + 1, block, self.tokens)",
    ),
    Mutant(
        "passes on text that it has",
        CURSOR,
        "fresh = Delta(event.block, self.length, event.text[have:], logprobs)",
        "fresh = Delta(event.block, self.length, event.text, logprobs)",
    ),
    Mutant(
        "accepts the end of a block that lacks text",
        CURSOR,
        "        if event.block > current or self.length < length:\n"
        "            return Verdict.GAP\n",
        "        if event.block > current:\n            return Verdict.GAP\n",
    ),
    Mutant(
        "accepts the end of a turn that lacks blocks",
        CURSOR,
        "event.blocks > self.blocks or not self.stopped or event.tokens > self.tokens",
        "event.tokens > self.tokens",
    ),
    Mutant(
        "does not send the start of a block again",
        CURSOR,
        "            self.stopped = self.length == 0\n",
        "            self.stopped = False\n",
    ),
    Mutant(
        "does not send the end of a turn again",
        CURSOR,
        "        self.tokens = min(self.tokens, max(position.tokens, 0))\n"
        "        self.ended = False\n",
        "        self.tokens = min(self.tokens, max(position.tokens, 0))\n",
    ),
]

PROCESS_MUTANTS = [
    Mutant(
        "never declares a process dead",
        HEARTBEATS,
        "self.registry.sweep(returned.sent_at)",
        "self.registry.sweep(-math.inf)",
    ),
    Mutant(
        "takes a process that does not answer for one without a subscription",
        PROCESS,
        "if isinstance(answer, Unavailable):",
        "if isinstance(answer, TurnwireError):",
    ),
    Mutant(
        "expects no successor of a process that left",
        REGISTRY,
        "                self._former[key] = (last[0], now)\n",
        "                pass\n",
    ),
]

BUS_MUTANTS = [
    Mutant(
        "forgets its subscriptions with the connection",
        CONNECTION,
        "for subscription in self.subscriptions:",
        "for subscription in self.subscriptions[:1]:",
    ),
    Mutant(
        "tells nobody of a new connection",
        BUS,
        "            self.on_reconnect.call()\n",
        "            pass\n",
    ),
    Mutant(
        "takes an answer without a responder for an answer",
        BUS,
        "if status is not None and token in self.waiting:",
        "if status is not None and status != NO_RESPONDERS and token in self.waiting:",
    ),
    Mutant(
        "waits for ever for an answer",
        REQUESTS,
        "        timer = asyncio.get_running_loop().call_later(timeout_s, expire)\n",
        "        timer = asyncio.get_running_loop().call_later(1e9 + timeout_s, expire)\n",
    ),
]

WORKER_MUTANTS = [
    Mutant(
        "goes on with a turn that was cancelled",
        WORKER,
        "if decoding is not None and decoding.stream.attempt <= cancel.attempt:",
        "if decoding is not None and decoding.stream.attempt < cancel.attempt:",
    ),
    Mutant(
        "sends only its own tokens of a turn that it continues",
        OPENER,
        "            ids=list(plan.resume),\n",
        "            ids=[],\n",
    ),
    Mutant(
        "decodes a turn that it continues from its beginning",
        ENGINE_REQUESTS,
        "            resumed=len(resume),\n",
        "",
    ),
    Mutant(
        "stays when its engine has died",
        WORKER,
        "while self._engine.healthy() or self._turns:",
        "while True:",
    ),
    Mutant(
        "fails the turns of an engine that died, for good",
        ENGINE,
        "        super().__init__(message, code=ENGINE_DIED)\n",
        "        super().__init__(message)\n",
    ),
    Mutant(
        "leaves the streams of a dead parser where they are",
        SHARDS,
        "        self._orphans.add(heartbeat.id)\n",
        "",
    ),
    Mutant(
        "offers the streams of a dead parser only to the first heartbeat of another one",
        SHARDS,
        "self._registry.on_heartbeat.append(self._heartbeat)",
        "self._registry.on_join.append(self._heartbeat)",
    ),
    Mutant(
        "does not move the ended streams of a dead parser",
        OUTBOX,
        "moved = [stream for stream in self.streams if stream.parser == gone]",
        "moved = [stream for stream in self.streams if stream.parser == gone and not stream.ended]",
    ),
    Mutant(
        "moves a stream without its parse context",
        TOKEN_STREAM,
        "self.sent = NOTHING_SENT if offset <= 0 else min(self.sent, offset)",
        "self.sent = min(self.sent, max(offset, 0))",
    ),
    Mutant(
        "does not send a stream again that its parser does not know",
        OUTBOX,
        "elif request.all and stream.sent >= 0 and not stream.delivered:",
        "elif False:",
    ),
]

SERVER_MUTANTS = [
    Mutant(
        "does not compare a server's count of tokens",
        ANSWER,
        "if counts.output != self._total:",
        "if False:",
    ),
    Mutant(
        "takes the end of a server's answer for the end of the turn",
        ANSWER,
        "            raise EngineDied("
        '"the inference server\'s answer was cut in the middle of the turn")\n',
        "            return EngineDelta(finish=FinishReason.LENGTH)\n",
    ),
]

PARSER_MUTANTS = [
    Mutant(
        "does not report that a worker was lost",
        PARSER,
        "        self._send_soon(lost)\n",
        "",
    ),
    Mutant(
        "keeps the turns of a frontend that is gone",
        PARSER,
        "        for parse in self._shard.turns_of(frontend):\n",
        "        for parse in list[TurnParse]():\n",
    ),
    Mutant(
        "keeps the link to a frontend that is gone",
        PARSER,
        "        self._sender.forget(frontend)\n",
        "",
    ),
    Mutant(
        "keeps the turns of a worker that took it for dead",
        PARSER,
        "for parse in self._shard.open_turns(worker):",
        "for parse in list[TurnParse]():",
    ),
    Mutant(
        "forgets a turn when its frontend has the frame before its end",
        EVENT_OUTBOX,
        "while ends and ends[0][0] <= seq:",
        "while ends and ends[0][0] <= seq + 1:",
    ),
    Mutant(
        "requests a replay from one token too far",
        TURN_STREAM,
        "StreamPosition(self.turn, self.attempt, len(self.ids))",
        "StreamPosition(self.turn, self.attempt, len(self.ids) + 1)",
    ),
    Mutant(
        "parses tokens again that it has",
        TURN_PARSE,
        "ids = entry.ids[have - entry.at :]",
        "ids = entry.ids",
    ),
    Mutant(
        "does not look at the place of tokens on the fast path",
        FAST_PATH,
        "if entry.at != len(self._ids) or entry.attempt != self._attempt:",
        "if entry.attempt != self._attempt:",
    ),
    Mutant(
        "does not announce a turn again that is sent from its beginning",
        TURN_STREAM,
        "        self.end_seq = None\n        self.announced = False\n",
        "        self.end_seq = None\n",
    ),
    Mutant(
        "reports an interruption before the text that it has sent",
        TURN_PARSE,
        "Interrupted(stream.worker, pack_ids(stream.ids), error, *stream.log.end)",
        "Interrupted(stream.worker, pack_ids(stream.ids), error, 0, 0)",
    ),
]

PREPROCESSOR_MUTANTS = [
    Mutant(
        "does not tell the frontend that no worker takes a turn",
        REFUSALS,
        "        until = asyncio.get_running_loop().time() + REFUSE_S\n",
        "        until = 0.0\n",
    ),
    Mutant(
        "waits for ever for the notice that a prompt is computed",
        HOLDING,
        "self._loop.call_later(self.leads.limit_s(lead), late)",
        "self._loop.call_later(1e9, late)",
    ),
]

FRONTEND_MUTANTS = [
    Mutant(
        "does not number its attempts",
        TURN_TABLE,
        "turn.attempt = Attempt(number + 1)",
        "turn.attempt = Attempt(number)",
    ),
    Mutant(
        "does not wait for a worker that continues a turn",
        ATTEMPTS,
        "Placing(until=now + self._config.bus.recovery_s)",
        "Placing(until=now)",
    ),
    Mutant(
        "gives up a turn at its first lost worker",
        ATTEMPTS,
        "if turn.failures >= self._config.attempts:\n            self._table.fail",
        "if turn.failures >= 1:\n            self._table.fail",
    ),
    Mutant(
        "waits for ever for a parser that took it for dead",
        EVENT_RECEIVER,
        "            self._attempts.restart_or_fail("
        'turn, "this server was cut off from the turn")\n',
        "            pass\n",
    ),
    Mutant(
        "ends a turn when its parser is late",
        WATCH,
        "if stream.lost_s > self._bus.recovery_s:",
        "if stream.lost_s > self._bus.beat_interval_s:",
    ),
    Mutant(
        "does not wait for a stage that is expected back",
        STAGE_WAIT,
        "may_end = problem.is_temporary or patient",
        "may_end = patient",
    ),
    Mutant(
        "keeps a Response only in its own memory",
        STORE,
        "            await self._bucket.put(key, value)\n",
        "            pass\n",
    ),
]

MUTANTS = [
    *LINK_MUTANTS,
    *CURSOR_MUTANTS,
    *PROCESS_MUTANTS,
    *BUS_MUTANTS,
    *WORKER_MUTANTS,
    *SERVER_MUTANTS,
    *PARSER_MUTANTS,
    *PREPROCESSOR_MUTANTS,
    *FRONTEND_MUTANTS,
]
