"""Stories: turns as a model writes them, with a request that each answers.

A story belongs to one API. `tests/fixtures/turns/API/NAME.sse` and `NAME.json` have the stream and
the document that its client receives, byte for byte.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Failed,
    FinishReason,
    TokenLogprob,
    TopLogprob,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.chat.render import ChatSettings
from tests.kit.bodies import CHAT, MESSAGES, RESPONSES, Api, Json, block
from tests.kit.events import USAGE, call, finish, text

Batches: TypeAlias = list[tuple[int, list[TurnEvent]]]
"""Events as they arrive, each batch with its choice."""

COMMAND = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
EXEC = block(
    "function", name="exec_command", description="Runs a command.", strict=False, parameters=COMMAND
)
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = block("custom", name="apply_patch", description="Edits files.", format=GRAMMAR)
SPAWN = block("function", name="spawn_agent", parameters={"type": "object", "properties": {}})
AGENTS = [SPAWN, block("custom", name="exec")]
BUILT_IN = [
    block("tool_search", execution="client"),
    block("web_search", external_web_access=False),
    block("shell", environment={"type": "local"}),
    block("local_shell"),
]
NAMESPACE = block("namespace", name="multi_agent_v1", description="Sub-agents.", tools=AGENTS)
TOOLS = {"tools": [EXEC, PATCH, NAMESPACE, *BUILT_IN]}
SEALED = {"include": ["reasoning.encrypted_content"]}
LEGACY = {"functions": [{"name": "look"}]}
USAGE_ASKED = {"stream_options": {"include_usage": True}}
DETAILS = {"x-turnwire-reasoning-details": "1"}

HEL = TokenLogprob(
    "Hel", -0.5, 0, b"Hel", [TopLogprob("Hel", -0.5, b"Hel"), TopLogprob("Bye", -1.25, b"Bye")]
)
LO = TokenLogprob("lo", -0.25, 3, b"lo")
HI = TokenLogprob("Hi", -0.5, 0, top=[TopLogprob("Hi", -0.5), TopLogprob("Ho", -1.5, b"Ho")])
LENGTH = FinishReason.LENGTH

Block: TypeAlias = Callable[[int], list[TurnEvent]]
"""The events of a block with this number."""


def said(
    *pieces: str, stops: bool = True, logprobs: Sequence[list[TokenLogprob]] | None = None
) -> Block:
    """A text in these pieces. `stops`: its end comes."""
    return _block(BlockStart(0, "text"), pieces, BlockStop(0), stops, logprobs)


def thought(*pieces: str, seal: str | None = "c2VhbA") -> Block:
    """Reasoning in these pieces."""
    return _block(BlockStart(0, "reasoning"), pieces, BlockStop(0, seal=seal))


def called(
    name: str, *pieces: str, id: str | None = "toolu", cut: bool = False, stops: bool = True
) -> Block:
    """A call with arguments in these pieces. `cut`: it is not whole. The number of its block
    follows the id `toolu`."""
    return _block(BlockStart(0, "tool_use", name, id), pieces, BlockStop(0, not cut), stops)


def _block(
    start: BlockStart,
    pieces: tuple[str, ...],
    stop: BlockStop,
    stops: bool = True,
    logprobs: Sequence[list[TokenLogprob]] | None = None,
) -> Block:
    def numbered(number: int) -> list[TurnEvent]:
        call_id = f"toolu_{number}" if start.call_id == "toolu" else start.call_id
        events: list[TurnEvent] = [replace(start, block=number, call_id=call_id)]
        offset = 0
        for at, piece in enumerate(pieces):
            events.append(Delta(number, offset, piece, logprobs[at] if logprobs else None))
            offset += len(piece)
        return [*events, replace(stop, block=number, length=offset)] if stops else events

    return numbered


def failure(kind: ErrorKind, message: str, retry_after_s: float | None = None) -> Failed:
    return Failed(ErrorInfo(kind, message, retry_after_s=retry_after_s))


class Story(Struct, frozen=True):
    """A turn and a request."""

    name: str
    events: list[TurnEvent] = []
    ask: Json = {}
    """Further fields of the request."""
    headers: dict[str, str] = {}
    dispatch: bool = False
    dispatch_reasoning: bool = False
    settings: ChatSettings = ChatSettings()
    choices: Batches = []
    """The events of an answer of several choices, in place of `events`."""

    @property
    def failed(self) -> bool:
        return any(failure_of(event) is not None for event in self.events)


def story(
    name: str,
    *blocks: Block,
    end: FinishReason | Failed = FinishReason.STOP,
    stop_string: str | None = None,
    usage: Usage = USAGE,
    **fields: Any,
) -> Story:
    """A story of one turn, which has these blocks. `fields`: those of Story."""
    events = [event for number, block in enumerate(blocks) for event in block(number)]
    last = end if isinstance(end, Failed) else finish(len(blocks), end, stop_string, usage)
    return Story(name, [*events, last], **fields)


INTERLEAVED = (
    thought("I shoul", "d look."),
    said("Let me ", "look.\n"),
    called("look", '{"pattern": "o', 'ld\\\\.flag", "l', 'imit": 5000.0}', id="call_1"),
    thought("And t", "here."),
    called("look", '{"patt', 'ern": ', '"é"}', id="call_2"),
)

SO = thought("s", "o")
HALF = said("half", stops=False)
LOOK_3 = called("look", '{"a', 't":', " 3}", id="call_1")
EXEC_L = called("exec_command", '{"cmd": "l"}')
CUT_PATCH = called("apply_patch", '{"input": "*** Begin Pa', cut=True)
ENGINE_FAILED = failure(ErrorKind.ENGINE, "the engine failed")

CHAT_STORIES = [
    story(
        "call_cut_by_max_tokens",
        LOOK_3,
        called("look", '{"at', '": [', "3, ", cut=True, id="call_2"),
        end=LENGTH,
        dispatch=True,
    ),
    story("cancelled_by_the_server", said("ha", "lf"), end=FinishReason.CANCELLED),
    story("dispatch", *INTERLEAVED, ask=USAGE_ASKED, dispatch=True, dispatch_reasoning=True),
    story("failed_in_mid_stream", said("ha", "lf"), end=ENGINE_FAILED),
    story("interleaved", *INTERLEAVED),
    story("legacy_call", SO, LOOK_3, ask=LEGACY),
    story(
        "logprobs",
        SO,
        said(
            "Hello",
            "",
            "é",
            logprobs=[
                [HEL, LO],
                [TokenLogprob("�", -2.0, 5, b"\xc3")],
                [TokenLogprob("�", -0.125, 5, b"\xa9")],
            ],
        ),
        ask={"logprobs": True},
    ),
    story(
        "reasoning_details",
        *INTERLEAVED,
        thought("Don", "e?", seal="bGFzdA"),
        said("Don", "e."),
        headers=DETAILS,
    ),
    story("reasoning_in_both_fields", *INTERLEAVED, headers={"x-turnwire-reasoning-field": "both"}),
    story("reasoning_inline", *INTERLEAVED, ask={"separate_reasoning": False}),
    story(
        "reasoning_omitted",
        *INTERLEAVED,
        headers=DETAILS,
        ask={"include_reasoning": False},
        dispatch_reasoning=True,
    ),
    story("stop_string", said("one,", " two"), end=FinishReason.STOP_STRING, stop_string="END"),
    Story(
        "two_choices",
        choices=[
            (1, text(0, "from the second")),
            (
                0,
                [
                    *call(0, "look", '{"at": 3}', call_id="call_a"),
                    finish(1, usage=Usage(prompt=656, output=30)),
                ],
            ),
            (1, [finish(1, LENGTH, usage=Usage(prompt=656, cached=656, output=10, reasoning=4))]),
        ],
        headers=DETAILS,
        ask=USAGE_ASKED | {"n": 2},
        dispatch=True,
    ),
    story(
        "with_usage",
        said("H", "i"),
        settings=ChatSettings(fingerprint="fp_1"),
        ask=USAGE_ASKED | {"service_tier": "default"},
    ),
]


MESSAGES_STORIES = [
    story(
        "call_cut_by_max_tokens",
        said("Look", "ing."),
        called("look", '{"at', '": "', "cu", cut=True, id="call_1"),
        end=LENGTH,
    ),
    story(
        "cancelled_by_the_server",
        said("a"),
        end=FinishReason.CANCELLED,
        usage=Usage(prompt=656, output=3),
    ),
    story("context_full", said("bef", "ore"), end=FinishReason.CONTEXT),
    story("context_management", said("a"), ask={"context_management": {"edits": []}}),
    story(
        "dispatch",
        SO,
        called("look", '{"at": 123', "4567890123", "4567890}", id="call_1"),
        called("look", '{"at', '": "', "cu", cut=True, id="call_2"),
        end=LENGTH,
        dispatch=True,
    ),
    story("empty_blocks_are_not_shown", thought(seal="cw"), said(), said("he", "re"), said()),
    story("failed_in_mid_stream", SO, HALF, end=failure(ErrorKind.ENGINE, "The engine failed.")),
    story(
        "interleaved",
        thought("Two files. Firs", "t the parser.\n"),
        called("Grep", '{"pattern": "o', 'ld\\\\.flag", "l', 'imit": 5000.0}', id="call_a1"),
        thought("Now the oth", "er “one” 🙂.", seal="c2VhbC0y"),
        called("Read", "{", "}", id="call_b2"),
        said("Both f", "ound."),
    ),
    story("prewarm", end=LENGTH, usage=Usage(prompt=656)),
    story("stop_sequence", said("bef", "ore"), end=FinishReason.STOP_STRING, stop_string="END"),
    story(
        "thinking_omitted",
        thought("sec", "ret"),
        said("sho", "wn"),
        ask={"thinking": {"type": "adaptive", "display": "omitted"}},
    ),
]


RESPONSES_STORIES = [
    story(
        "built_in_tools",
        called("tool_search", '{"query": "browser",\n "limit": 8}'),
        called("shell", '{"commands": ["ls", "pwd"], "timeout_ms": 1000}'),
        called("local_shell", '{"command": ["ls"], "working_directory": "/tmp"}'),
        called("apply_patch", '{"type": "update_file", "path": "a", "diff": "@@"}'),
        called("apply_patch", '{"type": "delete_file", "path": "a"}'),
        ask={"tools": [EXEC, *BUILT_IN, block("apply_patch")]},
    ),
    story(
        "built_in_tools_with_wrong_arguments",
        called("shell", '{"cmd": "ls"}'),
        called("tool_search", "[1]"),
        ask=TOOLS,
    ),
    story(
        "call_cut_by_max_output_tokens",
        said("Look:"),
        called("exec_command", '{"cmd": "l', cut=True),
        end=LENGTH,
        ask=TOOLS,
    ),
    story("cancelled_by_the_server", said("Hi."), end=FinishReason.CANCELLED),
    story("context_full", thought("I should"), end=FinishReason.CONTEXT),
    story(
        "dispatch",
        thought("Think."),
        EXEC_L,
        called("apply_patch", '{"input": "x"}'),
        called("exec_command", '{"cmd": }'),
        called("exec_command", '{"cmd": "m', cut=True),
        end=LENGTH,
        ask=TOOLS | SEALED,
        dispatch=True,
        dispatch_reasoning=True,
    ),
    story("failed_in_mid_stream", thought("I should"), EXEC_L, HALF, end=ENGINE_FAILED, ask=TOOLS),
    story("freeform_cut", CUT_PATCH, end=LENGTH, ask=TOOLS),
    story(
        "interleaved",
        thought("I should", " look."),
        said("Looking."),
        called("exec_command", '{"cmd": "ls', ' -l"}'),
        thought("And patch.", seal="c2VhbDI"),
        called(
            "apply_patch",
            '{"input": "*** Begin Patch\\n+h',
            "\\u00",
            "e9 \\ud83d",
            '\\ude00\\n*** End Patch\\n"}',
        ),
        called("multi_agent_v1__spawn_agent", "{}"),
        called("multi_agent_v1__exec", '{"input":"text(1)"}'),
        said("Done."),
        ask=TOOLS | SEALED | {"store": False},
    ),
    story(
        "logprobs",
        said("Hi", "!", logprobs=[[HI], [TokenLogprob("!", -0.25, 2, b"!")]]),
        ask={"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    ),
    story(
        "summary",
        thought("I should", " look."),
        said("Hello."),
        ask={
            "reasoning": {"effort": "medium", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
        },
    ),
]

STORIES: dict[Api, list[Story]] = {
    CHAT: CHAT_STORIES,
    MESSAGES: MESSAGES_STORIES,
    RESPONSES: RESPONSES_STORIES,
}
