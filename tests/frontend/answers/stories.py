"""Stories: turns as a model writes them, with a request that each answers.

A story belongs to one API. `tests/fixtures/turns/API/NAME.sse` and `NAME.json` have the stream and
the document that its client receives, byte for byte. Every story is also told through the other
APIs, in answer to a plain request that declares the tools it calls.
"""

from typing import TypeAlias

from msgspec import Struct

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
from tests.kit.events import call, finish, reasoning, text

Batches: TypeAlias = list[tuple[int, list[TurnEvent]]]
"""Events as they arrive, each batch with its choice."""

COMMAND = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
EXEC = block(
    "function",
    name="exec_command",
    description="Runs a command.",
    strict=False,
    parameters=COMMAND,
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
TOOLS = [
    EXEC,
    PATCH,
    block("namespace", name="multi_agent_v1", description="Sub-agents.", tools=AGENTS),
    *BUILT_IN,
]
SEALED = {"include": ["reasoning.encrypted_content"]}
FREEFORM = {"type": "custom", "custom": {"name": "apply_patch"}}
LEGACY = {"functions": [{"name": "look"}]}
USAGE_ASKED = {"stream_options": {"include_usage": True}}
DETAILS = {"x-turnwire-reasoning-details": "1"}

OLD_FLAG = '{"pattern": "old\\\\.flag", "limit": 5000.0}'
INTERLEAVED = [
    *reasoning(0, "I should look."),
    *text(1, "Let me look.\n"),
    *call(2, "look", OLD_FLAG, call_id="call_1"),
    *reasoning(3, "And there."),
    *call(4, "look", '{"pattern": "é"}', call_id="call_2"),
    finish(5),
]
HEL = TokenLogprob(
    "Hel", -0.5, 0, b"Hel", [TopLogprob("Hel", -0.5, b"Hel"), TopLogprob("Bye", -1.25, b"Bye")]
)
LO = TokenLogprob("lo", -0.25, 3, b"lo")


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


CHAT_STORIES: list[Story] = [
    Story(
        "arguments_that_are_no_object",
        [*call(0, "look", '{"at": }', call_id="call_1"), finish(1)],
        dispatch=True,
    ),
    Story(
        "block_left_open_at_the_end",
        [*call(0, "look", '{"a', pieces=1, call_id="call_1")[:-1], finish(1, FinishReason.LENGTH)],
    ),
    Story(
        "call_cut_before_its_arguments",
        [*call(0, "look", "", call_id="call_1", complete=False), finish(1, FinishReason.LENGTH)],
        dispatch=True,
    ),
    Story(
        "call_cut_by_max_tokens",
        [
            *call(0, "look", '{"at": 3}', call_id="call_1"),
            *call(1, "look", '{"at": [3, ', call_id="call_2", complete=False),
            finish(2, FinishReason.LENGTH),
        ],
        dispatch=True,
    ),
    Story(
        "call_without_an_id",
        [*call(0, "look", "", call_id=None), *call(1, "look", "", call_id=None), finish(2)],
    ),
    Story(
        "call_without_arguments", [*call(0, "look", "", call_id="call_1"), finish(1)], dispatch=True
    ),
    Story("cancelled_by_the_server", [*text(0, "half"), finish(1, FinishReason.CANCELLED)]),
    Story(
        "continuous_usage",
        [*text(0, "Hi"), finish(1)],
        ask={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    Story("dispatch", INTERLEAVED, ask=USAGE_ASKED, dispatch=True, dispatch_reasoning=True),
    Story(
        "failed_in_mid_stream",
        [*text(0, "half"), Failed(ErrorInfo(ErrorKind.ENGINE, "the engine failed"))],
    ),
    Story(
        "freeform_call",
        [
            *call(
                0,
                "apply_patch",
                '{"input": "*** Begin Patch\\n+\\u00e9 \\ud83d\\ude00\\n"}',
                call_id="call_1",
            ),
            *call(1, "look", "{}", call_id="call_2"),
            finish(2),
        ],
        ask={"tools": [FREEFORM]},
        dispatch=True,
    ),
    Story(
        "freeform_call_cut",
        [
            *call(0, "apply_patch", '{"input": "*** Beg', call_id="call_1", complete=False),
            finish(1, FinishReason.CONTEXT),
        ],
        ask={"tools": [FREEFORM]},
        dispatch=True,
    ),
    Story("interleaved", INTERLEAVED),
    Story(
        "legacy_call",
        [*reasoning(0, "so"), *call(1, "look", '{"at": 3}', call_id="call_1"), finish(2)],
        ask=LEGACY,
    ),
    Story(
        "legacy_second_call",
        [
            *call(0, "look", '{"at": 3}', call_id="call_1"),
            *call(1, "look", '{"at": 4}', call_id="call_2"),
            finish(2),
        ],
        ask=LEGACY,
        dispatch=True,
    ),
    Story(
        "logprobs",
        [
            *reasoning(0, "so"),
            BlockStart(1, "text"),
            Delta(1, 0, "Hello", [HEL, LO]),
            Delta(1, 5, "", [TokenLogprob("�", -2.0, 5, b"\xc3")]),
            Delta(1, 5, "é", [TokenLogprob("�", -0.125, 5, b"\xa9")]),
            BlockStop(1, length=6),
            finish(2),
        ],
        ask={"logprobs": True},
    ),
    Story(
        "logprobs_not_asked_for",
        [BlockStart(0, "text"), Delta(0, 0, "Hello", [HEL, LO]), BlockStop(0, length=5), finish(1)],
    ),
    Story(
        "nothing_said", [finish(0, FinishReason.LENGTH, usage=Usage(prompt=656))], ask=USAGE_ASKED
    ),
    Story(
        "reasoning_details",
        [
            *INTERLEAVED[:-1],
            *reasoning(5, "Done?", seal="bGFzdA"),
            *text(6, "Done."),
            finish(7),
        ],
        headers=DETAILS,
    ),
    Story("reasoning_in_both_fields", INTERLEAVED, headers={"x-turnwire-reasoning-field": "both"}),
    Story("reasoning_inline", INTERLEAVED, ask={"separate_reasoning": False}),
    Story(
        "reasoning_omitted",
        INTERLEAVED,
        headers=DETAILS,
        ask={"include_reasoning": False},
        dispatch_reasoning=True,
    ),
    Story(
        "stop_string",
        [*text(0, "one, two"), finish(1, FinishReason.STOP_STRING, stop_string="END")],
    ),
    Story(
        "two_choices",
        choices=[
            (1, [*text(0, "from the second")]),
            (
                0,
                [
                    *call(0, "look", '{"at": 3}', call_id="call_a"),
                    finish(1, usage=Usage(prompt=656, output=30)),
                ],
            ),
            (
                1,
                [
                    finish(
                        1,
                        FinishReason.LENGTH,
                        usage=Usage(prompt=656, cached=656, output=10, reasoning=4),
                    )
                ],
            ),
        ],
        headers=DETAILS,
        ask={"stream_options": {"include_usage": True}, "n": 2},
        dispatch=True,
    ),
    Story(
        "with_usage",
        [*text(0, "Hi"), finish(1)],
        settings=ChatSettings(fingerprint="fp_1"),
        ask={"stream_options": {"include_usage": True}, "service_tier": "default"},
    ),
]


MESSAGES_STORIES: list[Story] = [
    Story(
        "block_left_open_at_the_end",
        [*call(0, "look", '{"at', pieces=1, call_id="call_1")[:-1], finish(1)],
    ),
    Story(
        "call_cut_before_its_arguments",
        [*call(0, "now", "", call_id="call_1", complete=False), finish(1, FinishReason.LENGTH)],
    ),
    Story(
        "call_cut_by_max_tokens",
        [
            *text(0, "Looking."),
            *call(1, "look", '{"at": "cu', call_id="call_1", complete=False),
            finish(2, FinishReason.LENGTH),
        ],
    ),
    Story(
        "cancelled_by_the_server",
        [*text(0, "a"), finish(1, FinishReason.CANCELLED, usage=Usage(prompt=656, output=3))],
    ),
    Story(
        "complete_call_then_max_tokens",
        [
            *call(0, "look", '{"at": 1}', call_id="call_1"),
            *text(1, "and th"),
            finish(2, FinishReason.LENGTH),
        ],
    ),
    Story("context_full", [*text(0, "before"), finish(1, FinishReason.CONTEXT)]),
    Story(
        "context_management", [*text(0, "a"), finish(1)], ask={"context_management": {"edits": []}}
    ),
    Story(
        "dispatch",
        [
            *reasoning(0, "so"),
            *call(1, "look", '{"at": 12345678901234567890}', call_id="call_1"),
            *call(2, "look", '{"at": "cu', call_id="call_2", complete=False),
            finish(3, FinishReason.LENGTH),
        ],
        dispatch=True,
    ),
    Story(
        "empty_blocks_are_not_shown",
        [*reasoning(0, "", seal="cw"), *text(1, ""), *text(2, "here"), *text(3, ""), finish(4)],
    ),
    Story(
        "failed_in_mid_stream",
        [
            *reasoning(0, "so"),
            *text(1, "half", pieces=1)[:-1],
            Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed.")),
        ],
    ),
    Story(
        "interleaved",
        [
            *reasoning(0, "Two files. First the parser.\n"),
            *call(1, "Grep", OLD_FLAG, call_id="call_a1"),
            *reasoning(2, "Now the other “one” 🙂.", seal="c2VhbC0y"),
            *call(3, "Read", "{}", call_id="call_b2"),
            *text(4, "Both found."),
            finish(5),
        ],
    ),
    Story(
        "overloaded_in_mid_stream",
        [Failed(ErrorInfo(ErrorKind.OVERLOADED, "Busy.", retry_after_s=2.0))],
    ),
    Story(
        "parallel_calls",
        [
            *call(0, "look", '{"at": 1}', call_id="call_1"),
            *call(1, "look", '{"at": 2}', call_id="call_2"),
            *call(2, "now", "", call_id="call_3"),
            finish(3),
        ],
    ),
    Story("prewarm", [finish(0, FinishReason.LENGTH, usage=Usage(prompt=656))]),
    Story(
        "stop_sequence",
        [*text(0, "before"), finish(1, FinishReason.STOP_STRING, stop_string="END")],
    ),
    Story("text_only", [*text(0, 'Hello <world> & "friends"\n'), finish(1)]),
    Story(
        "thinking_omitted",
        [*reasoning(0, "secret"), *text(1, "shown"), finish(2)],
        ask={"thinking": {"type": "adaptive", "display": "omitted"}},
    ),
    Story("thinking_without_seal", [*reasoning(0, "so", seal=None), *text(1, "shown"), finish(2)]),
]


RESPONSES_STORIES: list[Story] = [
    Story("block_left_open_at_the_end", [*text(0, "half", pieces=1)[:-1], finish(1)]),
    Story(
        "built_in_cut",
        [
            *text(0, "Look:", pieces=1),
            *call(
                1, "shell", '{"commands": ["rm -r"]}', pieces=1, call_id="toolu_1", complete=False
            ),
            finish(2, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "built_in_tools",
        [
            *call(
                0, "tool_search", '{"query": "browser",\n "limit": 8}', pieces=1, call_id="toolu_0"
            ),
            *call(
                1,
                "shell",
                '{"commands": ["ls", "pwd"], "timeout_ms": 1000}',
                pieces=1,
                call_id="toolu_1",
            ),
            *call(
                2,
                "local_shell",
                '{"command": ["ls"], "working_directory": "/tmp"}',
                pieces=1,
                call_id="toolu_2",
            ),
            *call(
                3,
                "apply_patch",
                '{"type": "update_file", "path": "a", "diff": "@@"}',
                pieces=1,
                call_id="toolu_3",
            ),
            *call(
                4,
                "apply_patch",
                '{"type": "delete_file", "path": "a"}',
                pieces=1,
                call_id="toolu_4",
            ),
            finish(5),
        ],
        ask={"tools": [EXEC, *BUILT_IN, block("apply_patch")]},
    ),
    Story(
        "built_in_tools_with_wrong_arguments",
        [
            *call(0, "shell", '{"cmd": "ls"}', pieces=1, call_id="toolu_0"),
            *call(1, "tool_search", "[1]", pieces=1, call_id="toolu_1"),
            finish(2),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "call_cut_before_its_arguments",
        [
            *call(0, "exec_command", "", call_id="toolu_0", complete=False),
            finish(1, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "call_cut_behind_its_arguments",
        [
            *call(0, "exec_command", '{"cmd": "l"}', pieces=1, call_id="toolu_0", complete=False),
            finish(1, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "call_cut_by_max_output_tokens",
        [
            *text(0, "Look:", pieces=1),
            *call(1, "exec_command", '{"cmd": "l', pieces=1, call_id="toolu_1", complete=False),
            finish(2, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "call_of_an_unknown_tool",
        [*call(0, "no_such_tool", '{"a": 1}', pieces=1, call_id="toolu_0"), finish(1)],
        ask={"tools": TOOLS},
    ),
    Story(
        "call_without_arguments",
        [*call(0, "exec_command", "", call_id="toolu_0"), finish(1)],
        ask={"tools": TOOLS},
    ),
    Story(
        "cancelled_by_the_server", [*text(0, "Hi.", pieces=1), finish(1, FinishReason.CANCELLED)]
    ),
    Story(
        "complete_call_then_cut",
        [
            *call(0, "exec_command", '{"cmd": "l"}', pieces=1, call_id="toolu_0"),
            *text(1, "And n", pieces=1),
            finish(2, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story("context_full", [*reasoning(0, "I should", pieces=1), finish(1, FinishReason.CONTEXT)]),
    Story(
        "dispatch",
        [
            *reasoning(0, "Think.", pieces=1),
            *call(1, "exec_command", '{"cmd": "l"}', pieces=1, call_id="toolu_1"),
            *call(2, "apply_patch", '{"input": "x"}', pieces=1, call_id="toolu_2"),
            *call(3, "exec_command", '{"cmd": }', pieces=1, call_id="toolu_3"),
            *call(4, "exec_command", '{"cmd": "m', pieces=1, call_id="toolu_4", complete=False),
            finish(5, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS, **SEALED},
        dispatch=True,
        dispatch_reasoning=True,
    ),
    Story(
        "empty_blocks_are_not_shown",
        [*reasoning(0, ""), *text(1, ""), *text(2, "Hi.", pieces=1), finish(3)],
    ),
    Story(
        "everything_asked",
        [*text(0, "{}", pieces=1), finish(1)],
        ask={
            "instructions": "Be brief.",
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 100,
            "parallel_tool_calls": False,
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "safety_identifier": "s",
            "user": "u",
            "truncation": "auto",
            "text": {
                "verbosity": "low",
                "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
            },
            "reasoning": {"effort": "low", "context": "all_turns"},
            "store": False,
            "tools": [block("function", name="f")],
            "tool_choice": {"type": "function", "name": "f"},
            "max_tool_calls": 3,
            "service_tier": "flex",
            "previous_response_id": None,
        },
    ),
    Story(
        "failed_in_mid_stream",
        [
            *reasoning(0, "I should", pieces=1),
            *call(1, "exec_command", '{"cmd": "l"}', pieces=1, call_id="toolu_1"),
            *text(2, "half", pieces=1)[:-1],
            Failed(ErrorInfo(ErrorKind.ENGINE, "the engine failed")),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "freeform_cut",
        [
            *call(
                0,
                "apply_patch",
                '{"input": "*** Begin Pa',
                pieces=1,
                call_id="toolu_0",
                complete=False,
            ),
            finish(1, FinishReason.LENGTH),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "freeform_left_open_by_the_model",
        [
            *call(
                0,
                "apply_patch",
                '{"input": "*** Begin Pa',
                pieces=1,
                call_id="toolu_0",
                complete=False,
            ),
            finish(1),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "freeform_spelled_otherwise",
        [
            *call(0, "apply_patch", '{"why": "x", "input": "a\\nb"}', pieces=1, call_id="toolu_0"),
            *call(1, "apply_patch", ("*** Begin", " Patch"), call_id="toolu_1"),
            *call(2, "apply_patch", '{"input": 5}', pieces=1, call_id="toolu_2"),
            *call(3, "apply_patch", '{"input": "a", "more": 1}', pieces=2, call_id="toolu_3"),
            finish(4),
        ],
        ask={"tools": TOOLS},
    ),
    Story(
        "interleaved",
        [
            *reasoning(0, ("I should", " look.")),
            *text(1, "Looking.", pieces=1),
            *call(2, "exec_command", ('{"cmd": "ls', ' -l"}'), call_id="toolu_2"),
            *reasoning(3, "And patch.", pieces=1, seal="c2VhbDI"),
            *call(
                4,
                "apply_patch",
                (
                    '{"input": "*** Begin Patch\\n+h',
                    "\\u00",
                    "e9 \\ud83d",
                    '\\ude00\\n*** End Patch\\n"}',
                ),
                call_id="toolu_4",
            ),
            *call(5, "multi_agent_v1__spawn_agent", "{}", pieces=1, call_id="toolu_5"),
            *call(6, "multi_agent_v1__exec", '{"input":"text(1)"}', pieces=1, call_id="toolu_6"),
            *text(7, "Done.", pieces=1),
            finish(8),
        ],
        ask={"tools": TOOLS, "include": ["reasoning.encrypted_content"], "store": False},
    ),
    Story(
        "logprobs",
        [
            BlockStart(0, "text"),
            Delta(
                0,
                0,
                "Hi",
                [
                    TokenLogprob(
                        "Hi", -0.5, 0, top=[TopLogprob("Hi", -0.5), TopLogprob("Ho", -1.5, b"Ho")]
                    )
                ],
            ),
            Delta(0, 2, "!", [TokenLogprob("!", -0.25, 2, b"!")]),
            BlockStop(0, length=3),
            finish(1),
        ],
        ask={"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    ),
    Story("message_cut", [*text(0, ("Hello", " th")), finish(1, FinishReason.LENGTH)]),
    Story(
        "parallel",
        [
            *call(0, "exec_command", '{"cmd":"a"}', pieces=1, call_id="toolu_0"),
            *call(1, "exec_command", '{"cmd":"b"}', pieces=1, call_id="toolu_1"),
            *call(2, "exec_command", '{"cmd":"c"}', pieces=1, call_id="toolu_2"),
            finish(3),
        ],
        ask={"tools": TOOLS},
    ),
    Story("prefill_only", [finish(0, FinishReason.LENGTH)], ask={"generate": False}),
    Story(
        "rate_limited_in_mid_stream",
        [
            *text(0, "Hi.", pieces=1),
            Failed(ErrorInfo(ErrorKind.RATE_LIMITED, "Slow down.", retry_after_s=1.5)),
        ],
    ),
    Story(
        "stop_string",
        [*text(0, "Hello", pieces=1), finish(1, FinishReason.STOP_STRING, stop_string="END")],
        ask={"stop": "END"},
    ),
    Story(
        "summary",
        [*reasoning(0, ("I should", " look.")), *text(1, "Hello.", pieces=1), finish(2)],
        ask={
            "reasoning": {"effort": "medium", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
        },
    ),
    Story("text", [*text(0, ("Hello", " there.")), finish(1)]),
]


STORIES: dict[Api, list[Story]] = {
    CHAT: CHAT_STORIES,
    MESSAGES: MESSAGES_STORIES,
    RESPONSES: RESPONSES_STORIES,
}
