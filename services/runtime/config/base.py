"""Defines the base of all configurations: one frozen class per service, with types, bounds and
defaults.

The string under a field is its help text on the command line, and names include units. Secrets are
never values: a field names the file that holds the secret, and `read_secret` reads it at its use.
`loader` finds the values.
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

MIB = 1024 * 1024

Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1))]
Processes: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]
Amount: TypeAlias = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
Seconds: TypeAlias = Amount
Positive: TypeAlias = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
FROM_FILE = Parameter(accepts_keys=False, n_tokens=1)
"""Parameter of a dict with a text that is a JSON object or a file's name, not one of its items."""
Table: TypeAlias = Annotated[dict[str, Any], FROM_FILE]
Budgets: TypeAlias = Annotated[dict[str, int], FROM_FILE]
MAX_BUDGET: Final = 2**31 - 1
"""More reasoning tokens than any context window has; a larger number is a mistake."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The base of all configurations."""


def also(*flags: str) -> Parameter:
    """Adds names to a flag: those of vLLM, SGLang, TensorRT-LLM and Dynamo for the same setting."""
    return Parameter(alias=flags)


def read_secret(path: str) -> str:
    """The text of a secret without surrounding white space. Raises ValueError with the file's name
    if it has none."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the secret in {path}: {error}") from error
    if not secret:
        raise ValueError(f"the secret file {path} is empty")
    return secret


def read_key(path: str) -> str:
    """A secret for an HTTP header. Raises ValueError with the file's name if it cannot be one."""
    key = read_secret(path)
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"the key in {path} is not one line of printable ASCII characters")
    return key
