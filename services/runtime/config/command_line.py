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
from typing import Annotated, Any

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

from services.runtime.config.loader import (
    CONFIG_VARIABLE,
    ConfigError,
    Sources,
    as_text,
    nearest,
    one_line,
    options,
)
from services.runtime.config.settings import BusConfig, Config

CLEAN, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130
_FILE = Parameter(name="--config", help=f"TOML file with settings; also {CONFIG_VARIABLE}.")


def run_command(
    command: Callable[..., int],
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
    env = os.environ if env is None else env
    typed: dict[str, Sequence[Token]] = {}
    place = next((at for at, argument in enumerate(argv, 1) if argument in ("-h", "--help")), None)
    flags, epilogue = _setting_flags(configs, without, help_texts=place is not None), ""
    if essential and place is not None:
        topic, groups = "".join(argv[place : place + 1]).lower(), list(map(_group_name, configs))
        if topic and topic not in ("all", *map(str.lower, groups)):
            print(
                f"{prog}: --help knows no group "
                f"{topic}{nearest(topic, ['all', *map(str.lower, groups)])}",
                file=sys.stderr,
            )
            raise SystemExit(USAGE)
        argv = argv[:place]
        if topic != "all":
            flags = {name: _hidden(flag, topic, essential) for name, flag in flags.items()}
            more = " | ".join(map(str.lower, groups))
            epilogue = f"All flags of a group: {prog} --help {more} | all"

    def collect(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        typed.update(
            {argument.field_info.name: argument.tokens for argument in arguments if argument.tokens}
        )

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> int:
        if not configs:
            return command(*args, **kwargs)
        file = kwargs.get("config") or env.get(CONFIG_VARIABLE) or None
        return command(
            Sources(typed, env, file), *args, **{n: v for n, v in kwargs.items() if n not in flags}
        )

    parameters = [*inspect.signature(command).parameters.values()][bool(configs) :]
    call.__signature__ = inspect.Signature([*parameters, *flags.values()])  # type: ignore[attr-defined]
    app = App(
        name=prog,
        config=collect,
        default_parameter=Parameter(negative=()),
        help_format="markdown",
        version_flags=(),
        group_commands="Parameters",
        help_epilogue=epilogue,
    )
    app.default(call)
    try:
        function, bound, _ = app.parse_args(argv, print_error=False, exit_on_error=False)
        return function(*bound.args, **bound.kwargs) or CLEAN
    except (CycloptsError, ConfigError) as error:
        for problem in error.problems if isinstance(error, ConfigError) else [one_line(error)]:
            print(f"{prog}: {problem}", file=sys.stderr)
        raise SystemExit(USAGE) from None


def forwarded(flags: Mapping[str, Sequence[Token]], config: type[Config]) -> list[str]:
    """Returns the `flags` that `config` has, as arguments for another process."""
    return [
        f"{option.name}={token.value if token.implicit_value is UNSET else token.implicit_value}"
        for option in options(config)
        for token in flags.get(option.field_info.name, ())
    ]


def _setting_flags(
    configs: Sequence[type[Config]], without: Sequence[str], help_texts: bool
) -> Mapping[str, inspect.Parameter]:
    """Makes parameters by name, for the file and each option. Reading `help_texts` takes as long as
    the rest."""
    annotations: dict[str, Any] = {"config": Annotated[str | None, _FILE]} if configs else {}
    of_bus = (
        {option.field_info.name for option in options(BusConfig)} if BusConfig in configs else set()
    )
    for number, config in enumerate(configs):
        group = Group(_group_name(config), help=config.__doc__ or "", sort_key=number)
        for option in options(config, help_texts):
            if option.field_info.name not in without and (
                config is BusConfig or option.field_info.name not in of_bus
            ):
                annotations.setdefault(option.field_info.name, _annotation(option, group))
    kind = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, kind, annotation=a, default=None)
        for name, a in annotations.items()
    }


def _group_name(config: type[Config]) -> str:
    return config.__name__.removesuffix("Config")


def _hidden(flag: inspect.Parameter, topic: str, essential: Sequence[str]) -> inspect.Parameter:
    """Leaves a flag out of the help unless it is of the group `topic`; without one, unless it is
    essential."""
    groups = [group.name.lower() for one in flag.annotation.__metadata__ for group in one.group]
    shown = flag.name == "config" or (topic in groups if topic else flag.name in essential)
    return (
        flag
        if shown
        else flag.replace(annotation=Annotated[flag.annotation, Parameter(show=False)])
    )


def _annotation(option: Argument, group: Group) -> Any:
    default = option.field_info.default
    text = " ".join((option.parameter.help or "").split())
    if "default:" not in text and default not in (None, [], {}):
        text += f" [default: {as_text(default)}]"
    negative = "--no-" + option.name.removeprefix("--") if option.hint is bool else ()
    own = Parameter(
        help=text,
        group=group,
        converter=_leave,
        required=False,
        show_default=False,
        negative=negative,
    )
    # `| None`, because `_leave` returns None: if pydantic is loaded, cyclopts checks values against
    # the annotation.
    return Annotated[option.hint | None, option.parameter, own]


def _leave(_type: Any, _tokens: Sequence[Token]) -> None:
    """Converts to no value: `Sources.load` converts the tokens."""
