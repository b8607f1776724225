"""Runs a command with its command line: cyclopts parses the flags and prints the help.

A command is a function, and its parameters are its flags. A command that reads settings has a flag
for each of them, and `--config`. The values of these flags stay tokens: `Sources.load` converts
them, after it has compared them with the environment and the file.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeAlias

from cyclopts import (
    UNSET,
    App,
    Argument,
    ArgumentCollection,
    CycloptsError,
    Group,
    Parameter,
    Token,
)

from services.runtime.config.base import Config
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.names import CONFIG_VARIABLE, nearest
from services.runtime.config.options import as_text, one_line, options
from services.runtime.config.service import BusConfig

CommandFunction: TypeAlias = Callable[..., int]
"""A command: its parameters are the flags, its docstring is the help. Returns the exit status."""
CLEAN = 0
FAILURE = 1
USAGE = 2
INTERRUPTED = 130
_ESSENTIAL = Group("Most used settings")
_FILE = Parameter(name="--config", help=f"TOML file with settings; also {CONFIG_VARIABLE}.")


def run_command(
    command: CommandFunction,
    prog: str,
    argv: Sequence[str],
    *configs: type[Config],
    without: Sequence[str] = (),
    essential: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> int:
    """Calls `command` with the values of its flags; returns its exit status.

    With `configs`, each of their options is a flag, except those in `without`; options of the same
    name share a flag. The first argument of the command is then the `Sources` of the settings. With
    names of `essential` options, `--help` shows only those, `--help all` every flag, and `--help
    GROUP` those of one of `configs`.

    Raises:
        SystemExit: with status 2 for a wrong command line or configuration; stderr has one line for
            each problem.
    """
    help_at = _help_place(argv)
    flags = _setting_flags(configs, without, help_texts=help_at is not None)
    epilogue = ""
    if essential and help_at is not None:
        topic = "".join(argv[help_at : help_at + 1]).lower()
        argv = argv[:help_at]
        topics = [*(_group_name(config).lower() for config in configs), "all"]
        _check_topic(prog, topic, topics)
        if topic != "all":
            flags = {name: _hidden(flag, topic, essential) for name, flag in flags.items()}
            epilogue = f"All flags: {prog} --help all; of a group: {' | '.join(topics[:-1])}"
    line = _CommandLine(command, flags, os.environ if env is None else env)
    try:
        return line.run(prog, argv, epilogue)
    except ConfigError as error:
        _refuse(prog, error.problems)
    except CycloptsError as error:
        _refuse(prog, [one_line(error)])


class _CommandLine:
    """The command line of one command."""

    def __init__(
        self,
        command: CommandFunction,
        settings: Mapping[str, inspect.Parameter],
        env: Mapping[str, str],
    ) -> None:
        """`settings`: the flags of settings by name; with them, the command's first argument is its
        `Sources`."""
        self._command = command
        self._settings = settings
        self._env = env
        self._typed: dict[str, Sequence[Token]] = {}
        """The tokens of each flag in the command line."""

    def run(self, prog: str, argv: Sequence[str], epilogue: str) -> int:
        """Calls the command with the values of `argv`. Raises CycloptsError and ConfigError."""
        app = App(
            name=prog,
            config=self._collect_tokens,
            default_parameter=Parameter(negative=()),
            help_format="markdown",
            version_flags=(),
            group_commands="Parameters",
            help_epilogue=epilogue,
        )
        app.default(self._described())
        function, bound, _ = app.parse_args(argv, print_error=False, exit_on_error=False)
        return function(*bound.args, **bound.kwargs) or CLEAN

    def _described(self) -> CommandFunction:
        """The command as cyclopts calls it: with its own docstring, for the help, and with the
        settings as parameters instead of `Sources`."""
        parameters = list(inspect.signature(self._command).parameters.values())
        if self._settings:
            del parameters[0]

        @functools.wraps(self._command)
        def call(*args: Any, **kwargs: Any) -> int:
            if not self._settings:
                return self._command(*args, **kwargs)
            file = kwargs.get("config") or self._env.get(CONFIG_VARIABLE) or None
            others = {name: value for name, value in kwargs.items() if name not in self._settings}
            return self._command(Sources(self._typed, self._env, file), *args, **others)

        signature = inspect.Signature([*parameters, *self._settings.values()])
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    def _collect_tokens(
        self, _app: App, _commands: tuple[str, ...], arguments: ArgumentCollection
    ) -> None:
        for argument in arguments:
            if argument.tokens:
                self._typed[argument.field_info.name] = argument.tokens


def _help_place(argv: Sequence[str]) -> int | None:
    """The index after the first flag for help; None without one."""
    for at, argument in enumerate(argv, 1):
        if argument in ("-h", "--help"):
            return at
    return None


def _check_topic(prog: str, topic: str, topics: Sequence[str]) -> None:
    """Ends the process if the help has no group `topic`."""
    if topic and topic not in topics:
        _refuse(prog, [f"--help knows no group {topic}{nearest(topic, topics)}"])


def _refuse(prog: str, problems: Sequence[str]) -> NoReturn:
    """Prints the problems of a command line and ends the process."""
    for problem in problems:
        print(f"{prog}: {problem}", file=sys.stderr)
    raise SystemExit(USAGE) from None


def forwarded_arguments(flags: Mapping[str, Sequence[Token]], config: type[Config]) -> list[str]:
    """The `flags` that `config` has, as arguments for another process."""
    arguments: list[str] = []
    for option in options(config):
        for token in flags.get(option.field_info.name, ()):
            is_written = token.implicit_value is UNSET
            value = token.value if is_written else token.implicit_value
            arguments.append(f"{option.name}={value}")
    return arguments


def _setting_flags(
    configs: Sequence[type[Config]], without: Sequence[str], help_texts: bool
) -> Mapping[str, inspect.Parameter]:
    """Makes parameters by name, for the file and each option. Reading `help_texts` takes as long as
    the rest."""
    annotations: dict[str, Any] = {"config": Annotated[str | None, _FILE]} if configs else {}
    excluded = set(without)
    of_bus: set[str] = set()
    if BusConfig in configs:  # the options of the bus are then shown in their own group
        of_bus = {option.field_info.name for option in options(BusConfig)}

    for number, config in enumerate(configs):
        group = Group(_group_name(config), help=config.__doc__ or "", sort_key=number)
        left_out = excluded if config is BusConfig else excluded | of_bus
        for option in options(config, help_texts):
            name = option.field_info.name
            if name not in left_out:
                annotations.setdefault(name, _annotation(option, group))

    kind = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, kind, annotation=annotation, default=None)
        for name, annotation in annotations.items()
    }


def _group_name(config: type[Config]) -> str:
    return config.__name__.removesuffix("Config")


def _hidden(flag: inspect.Parameter, topic: str, essential: Sequence[str]) -> inspect.Parameter:
    """Leaves a flag out of the help unless it is of the group `topic`; without one, unless it is
    essential, and then without its other names."""
    if flag.name == "config" or topic in _groups_of(flag):
        return flag
    parameter = Parameter(show=False)
    if not topic and flag.name in essential:
        name = f"--{flag.name.replace('_', '-')}"
        parameter = Parameter(name=name, alias=(), group=_ESSENTIAL)
    return flag.replace(annotation=Annotated[flag.annotation, parameter])


def _groups_of(flag: inspect.Parameter) -> set[str]:
    groups: set[str] = set()
    for parameter in flag.annotation.__metadata__:
        groups.update(group.name.lower() for group in parameter.group)
    return groups


def _annotation(option: Argument, group: Group) -> Any:
    default = option.field_info.default
    text = " ".join((option.parameter.help or "").split())
    if "default:" not in text and default not in (None, [], {}):
        text += f" [default: {as_text(default)}]"
    negative = "--no-" + option.name.removeprefix("--") if option.hint is bool else ()
    parameter = Parameter(
        help=text,
        group=group,
        converter=_leave,
        required=False,
        show_default=False,
        negative=negative,
    )
    # `| None`, because `_leave` returns None: if pydantic is loaded, cyclopts checks values against
    # the annotation.
    return Annotated[option.hint | None, option.parameter, parameter]


def _leave(_type: Any, _tokens: Sequence[Token]) -> None:
    """Converts to no value: `Sources.load` converts the tokens."""
