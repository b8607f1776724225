"""The command line of a configuration Struct: a flag per option, and the spellings that the field's servers use.

argparse, and no framework with settings of its own: only what was really typed may go before the environment and the
file, with the spelling that was typed as its origin, and every text must go through the one loader. So a flag here has
no type and no default; `config_sources.load` gives it both.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec import inspect as mi

from services.runtime.config_options import Option, options
from services.runtime.config_sources import CONFIG_VARIABLE, ConfigError, Given, Loaded, load, nearest, shown

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "aliases": ("--alias",),
    "chat_template": ("--custom-jinja-template",),
    "engine_args": ("--extra-llm-api-options",),
    "host": ("--http-host",),
    "max_model_len": ("--context-length", "--max-seq-len"),
    "model": ("--model-path",),
    "port": ("--http-port",),
    "reasoning_parser": ("--dyn-reasoning-parser",),
    "served_model_name": ("--model-name",),
    "slots": ("--max-num-seqs", "--max-batch-size"),
    "template_kwargs": ("--default-chat-template-kwargs",),
    "tool_call_parser": ("--dyn-tool-call-parser", "--tool-parser"),
}
"""Where vLLM, SGLang, TensorRT-LLM and Dynamo have a flag for the same thing."""

C = TypeVar("C", bound=Struct)


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """As argparse, with `--a_b` read as `--a-b` and the nearest flag named for an unknown one (exit status 2).

    A subcommand's parser is found in the namespace under `parser`.
    """
    parsed, extra = parser.parse_known_args([_dashed(argument) for argument in argv])
    if extra:
        owner: argparse.ArgumentParser = getattr(parsed, "parser", parser)
        owner.error(f"unknown argument {extra[0]}{nearest(extra[0].partition('=')[0], owner._option_string_actions)}")
    return parsed


def add_flags(parser: argparse.ArgumentParser, *configs: type[Struct], without: Sequence[str] = ()) -> None:
    """A flag for each option of `configs`, those of several once; what is typed lands in `namespace.given`."""
    parser.set_defaults(given={})
    seen = set(without)
    for config in configs:
        title = (config.__doc__ or "").split("\n")[0]
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower(), title)
        for name, option in options(config).items():
            if name not in seen:
                seen.add(name)
                _add(group, option)


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """`--config`."""
    parser.add_argument("--config", metavar="FILE", help=f"TOML file with settings; also {CONFIG_VARIABLE}")


def from_command_line(
    config: type[C], prog: str, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> Loaded[C]:
    """`config` from flags, environment and file; prints every problem and exits with status 2 where there is one."""
    usage = f"{prog} [flags]   (all of them: {prog} --help)"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=config.__doc__, allow_abbrev=False)
    add_config_flag(parser)
    add_flags(parser, config)
    return load_or_exit(config, prog, parse_arguments(parser, argv), os.environ if env is None else env)


def load_or_exit(config: type[C], prog: str, arguments: argparse.Namespace, env: Mapping[str, str]) -> Loaded[C]:
    """`load` with the flags and the file that `arguments` name; status 2 and one line for each problem if it cannot."""
    try:
        return load(config, arguments.given, env, arguments.config or env.get(CONFIG_VARIABLE) or None)
    except ConfigError as error:
        exit_with(prog, error.problems)


def exit_with(prog: str, problems: Sequence[str]) -> NoReturn:
    """Ends the process for a wrong configuration."""
    for problem in problems:
        print(f"{prog}: {problem}", file=sys.stderr)
    raise SystemExit(2)


def typed(given: Mapping[str, Given], config: type[Struct]) -> list[str]:
    """The flags in `given` that `config` has, as a command line for another process."""
    argv: list[str] = []
    for name, option in options(config).items():
        if name not in given:
            continue
        value, flag = given[name].value, _flag(name)
        if option.is_bool:
            argv.append(flag if value else _flag("no_" + name))
        else:
            argv += [f"{flag}={v}" for v in (value if isinstance(value, list) else [value])]
    return argv


class _Take(argparse.Action):
    """Keeps the text and the spelling of a flag; a list option adds up."""

    def __init__(self, option_strings: Sequence[str], dest: str, option: Option, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0 if option.is_bool else None, default=argparse.SUPPRESS, **kwargs)
        self.option = option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, spelling = self.option.name, option_string or ""
        given: dict[str, Given] = dict(namespace.given)
        if self.option.is_bool:
            value: Any = not spelling.startswith("--no-")
        elif self.option.is_list and isinstance(values, str):
            value = [*(given[name].value if name in given else []), *(v for v in values.split(",") if v)]
        else:
            value = values
        given[name] = Given(value, "flag", spelling)
        namespace.given = given


def _add(group: Any, option: Option) -> None:
    strings = [_flag(option.name), *SPELLINGS.get(option.name, ())]
    if option.is_bool:
        strings += [_flag("no_" + option.name)]
    default = "required" if option.default is NODEFAULT else f"default: {shown(option.default)}"
    text = option.help if option.default is None or "default:" in option.help else f"{option.help} [{default}]"
    shape = {} if option.is_bool else {"metavar": _metavar(option)}
    group.add_argument(*strings, dest=option.name, action=_Take, option=option, help=text.replace("%", "%%"), **shape)


def _metavar(option: Option) -> str:
    match option.info:
        case mi.LiteralType(values=values):
            return "|".join(str(v) for v in values)
        case mi.IntType() | mi.FloatType():
            return "N"
    return option.name.rpartition("_")[2].upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _dashed(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument
