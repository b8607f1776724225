"""Loads the Python parsers of vLLM and SGLang alone, from unpacked wheels, under one interface.

Only their parser packages and the message types of these are executed. All else that they import
(torch, the engine, xgrammar, …) is replaced by classes that can be imported, subclassed and used as
annotations. Their code is unchanged: the classes of their servers are called as their servers call
them, one token at a time.
"""

import enum
import importlib.abc
import importlib.machinery
import itertools
import sys
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from bench.parsers_streams import Tokenizer

Named = dict[str, tuple[str, str]]
_VLLM: Final = (
    *(
        "parser",
        "tool_parsers",
        "reasoning",
        "exceptions",
        "utils.collection_utils",
        "utils.import_utils",
    ),
    *("entrypoints.generate.base.protocol", "entrypoints.serve.engine.protocol"),
    *("entrypoints.openai.chat_completion.protocol", "entrypoints.openai.responses.protocol"),
)
_SGLANG: Final = (
    "srt.function_call",
    "srt.parser",
    "srt.entrypoints.openai.protocol",
    "srt.environ",
)
_EXECUTED: Final = {"vllm": _VLLM, "sglang": _SGLANG}
_ABSENT: Final = frozenset(
    {
        "torch",
        "triton",
        "xgrammar",
        "openai_harmony",
        "mistral_common",
        "llguidance",
        "tiktoken",
        "torchvision",
    }
)

VLLM_NAMES: Final[Named] = {
    "qwen3_coder": ("qwen3_coder", "qwen3"),
    "deepseek_v4": ("deepseek_v4", "deepseek_v4"),
    "glm47": ("glm47", "glm47"),
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "minimax_m3": ("minimax_m3", "minimax_m3"),
    "deepseek_v41": ("deepseek_v41", "deepseek_v41"),
    "nemotron_v3": ("qwen3_coder", "nemotron_v3"),
    "hermes": ("hermes", "qwen3"),
    "gemma4": ("gemma4", "gemma4"),
    "mistral": ("mistral", "mistral"),
    "deepseek_v32": ("deepseek_v32", "deepseek_v3"),
    "muse_glimmer": ("muse_glimmer", "muse_glimmer"),
    "glm45": ("glm45", "glm45"),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3"),
    "inkling": ("inkling", "inkling"),
    "step3p5": ("step3p5", "step3p5"),
    "mimo": ("mimo", "mimo"),
}
"""Tool and reasoning parser of each family."""
SGLANG_NAMES: Final[Named] = {
    "qwen3_coder": ("qwen3_coder", "qwen3"),
    "deepseek_v4": ("deepseekv4", "deepseek-v4"),
    "glm47": ("glm47", "glm45"),
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "gpt_oss": ("gpt-oss", "gpt-oss"),
    "minimax_m2": ("minimax-m2", "minimax"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "minimax_m3": ("minimax-m3", "minimax-m3"),
    "deepseek_v41": ("deepseekv41", "deepseek-v41"),
    "nemotron_v3": ("qwen3_coder", "nemotron_3"),
    "hermes": ("qwen25", "qwen3"),
    "gemma4": ("gemma4", "gemma4"),
    "mistral": ("mistral", "mistral"),
    "deepseek_v32": ("deepseekv32", "deepseek-v3"),
    "muse_glimmer": ("muse", "muse"),
    "glm45": ("glm45", "glm45"),
    "deepseek_v31": ("deepseekv31", "deepseek-v3"),
    "inkling": ("inkling", "inkling"),
    "step3p5": ("step3p5", "step3p5"),
    "mimo": ("mimo", "mimo"),
}


class Said:
    """The output of a parser for a stream, to check that it did the work."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.text = ""
        self.arguments = ""


class Stream(Protocol):
    """One generation that a parser reads."""

    def feed(self, text: str, token: int) -> Any: ...

    def finish(self) -> Any: ...

    def note(self, out: Any, said: Said) -> None:
        """Adds what a `feed` or `finish` returned."""
        ...


Open = Callable[[str, Tokenizer, list[dict[str, Any]]], Stream]


def load(folder: Path | None, peer: str) -> Open | None:
    """Loads the parsers of `peer` from the folder with its unpacked wheel; None without a
    folder."""
    if folder is None:
        return None
    sys.path.append(str(folder))
    sys.meta_path.insert(0, _Finder(folder, peer))
    return _vllm() if peer == "vllm" else _sglang()


def _vllm() -> Open:
    tool_type: Any = import_module(
        "vllm.entrypoints.openai.chat_completion.protocol"
    ).ChatCompletionToolsParam
    manager: Any = import_module("vllm.parser.parser_manager").ParserManager

    class VllmStream:
        def __init__(self, family: str, tokenizer: Tokenizer, tools: list[dict[str, Any]]) -> None:
            if family == "gpt_oss":
                raise LookupError("openai_harmony needs a vocabulary that it downloads")
            tool_parser, reasoning_parser = VLLM_NAMES[family]
            offered = [tool_type(type="function", function=tool) for tool in tools]
            cls = manager.get_parser(tool_parser, reasoning_parser, enable_auto_tools=True)
            thinking = {"thinking": True, "enable_thinking": True, "thinking_mode": "adaptive"}
            self._parse = cls(tokenizer, offered, chat_template_kwargs=thinking).parse_delta
            self._request = types.SimpleNamespace(
                include_reasoning=True,
                tool_choice="auto",
                tools=offered,
                messages=[],
                chat_template_kwargs=thinking,
            )

        def feed(self, text: str, token: int) -> Any:
            return self._parse(text, [token], self._request, None, finished=False)

        def finish(self) -> Any:
            return self._parse("", [], self._request, None, finished=True)

        def note(self, out: Any, said: Said) -> None:
            if out is not None:
                said.reasoning += out.reasoning or ""
                said.text += out.content or ""
                said.arguments += "".join(
                    (c.function.arguments or "") for c in out.tool_calls or () if c.function
                )

    return VllmStream


def _sglang() -> Open:
    tool_type: Any = import_module("sglang.srt.entrypoints.openai.protocol").Tool
    calls: Any = import_module("sglang.srt.function_call.function_call_parser").FunctionCallParser
    thoughts: Any = import_module("sglang.srt.parser.reasoning_parser").ReasoningParser

    class SglangStream:
        def __init__(self, family: str, tokenizer: Tokenizer, tools: list[dict[str, Any]]) -> None:
            tool_parser, reasoning_parser = SGLANG_NAMES[family]
            offered = [tool_type(type="function", function=tool) for tool in tools]
            thinking = types.SimpleNamespace(
                chat_template_kwargs={"thinking": True, "enable_thinking": True}
            )
            self._reasoning = thoughts(
                reasoning_parser,
                True,
                None,
                thinking,
                tokenizer=tokenizer,
                tool_call_parser_active=True,
            )
            self._tools = calls(offered, tool_parser, tokenizer=tokenizer)

        def feed(self, text: str, token: int) -> Any:
            reasoning, text = self._reasoning.parse_stream_chunk(text)
            if text:
                return (reasoning, *self._tools.parse_stream_chunk(text))
            return reasoning, "", ()

        def finish(self) -> Any:
            reasoning, text = self._reasoning.parse_stream_end()
            normal, calls = self._tools.parse_stream_chunk(text) if text else ("", [])
            last, more = self._tools.parse_stream_end()
            return reasoning, normal + last, [*calls, *more]

        def note(self, out: Any, said: Said) -> None:
            reasoning, text, calls = out
            said.reasoning += reasoning or ""
            said.text += text or ""
            said.arguments += "".join(call.parameters or "" for call in calls)

    return SglangStream


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a peer's parser packages, and replaces all others."""

    def __init__(self, folder: Path, peer: str) -> None:
        self._folder, self._peer = folder, peer

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top == self._peer and any(
            rest == part or rest.startswith(part + ".") for part in _EXECUTED[top]
        ):
            return importlib.machinery.PathFinder.find_spec(name, path)
        if top != self._peer and top not in _ABSENT:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(self._folder.joinpath(*name.split(".")))]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        for name, value in _GIVEN.get(spec.name, {}).items():
            setattr(module, name, value)
        vars(module)["__getattr__"] = _stand_in
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Does nothing: there is nothing to execute."""


class _Anything(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        return _stand_in(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _stand_in(name: str) -> Any:
    """A class to import, subclass, annotate with, call or decorate with."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(
        name,
        (),
        {
            "__init__": lambda self, *args, **kwargs: None,
            "__call__": lambda self, *args, **kwargs: (
                args[0] if len(args) == 1 and callable(args[0]) else self
            ),
            "__class_getitem__": classmethod(lambda cls, key: cls),
            "__get_pydantic_core_schema__": classmethod(
                lambda cls, source, handler: {"type": "any"}
            ),
        },
    )


class _Silent:
    """A logger that does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


_numbers = itertools.count()
_GIVEN: Final[dict[str, dict[str, Any]]] = {
    "vllm.logger": {"init_logger": lambda name: _Silent()},
    "vllm.utils": {"random_uuid": lambda: f"{next(_numbers):032x}"},
    "vllm.renderers.chat_utils": {
        "make_tool_call_id": lambda *args, **kwargs: f"chatcmpl-tool-{next(_numbers):x}",
        "get_tool_call_id_type": lambda config: "random",
    },
    "vllm.utils.mistral": {"is_mistral_tokenizer": lambda tokenizer: False},
    "mistral_common.tokens.tokenizers.base": {
        "SpecialTokens": enum.Enum(
            "SpecialTokens",
            {
                "tool_calls": "[TOOL_CALLS]",
                "args": "[ARGS]",
                "begin_think": "[THINK]",
                "end_think": "[/THINK]",
            },
        )
    },
    "vllm.envs": {"VLLM_ENFORCE_STRICT_TOOL_CALLING": False, "VLLM_MAX_STOP_STRINGS": 64},
}
"""Packages that they use while parsing, or to build their message types."""
