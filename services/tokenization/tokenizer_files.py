"""Loads a model's tokenizer with transformers in a child process.

transformers defines what tokenizer files mean: it adds tokens, repairs old files, converts other
formats. Importing it costs 1.5 s and 200 MB where torch is installed, and a preprocessor with a
loaded tokenizer does not need it. For a model directory the child's report is cached
(`report_cache`)."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from tokenizers import AddedToken, Tokenizer

from schemas.errors import Invalid
from services.tokenization.model_files import local_folder
from services.tokenization.report_cache import CacheEntry

TIMEOUT_S = 600.0
"""The files of a hub id may have to be downloaded first."""


class TokenizerReport(Struct, frozen=True, omit_defaults=True):
    """The child's report."""

    backend: str = ""
    """The tokenizer as tokenizer.json."""
    special_tokens: dict[str, Any] = {}
    chat_template: str | dict[str, str] | None = None
    eos_token_id: int | None = None
    chat_control_tokens: list[str] | None = None
    """Control tokens that are not special, where the tokenizer names them."""
    encode_special_tokens: bool = False
    """`split_special_tokens`, for which tokenizer.json has no field."""
    unreadable: str = ""
    """The error, if files cannot be read."""
    wrong: str = ""
    """The error, if files are invalid."""


class LoadedTokenizer:
    """A model's tokenizer, as transformers reads its files."""

    def __init__(self, report: TokenizerReport) -> None:
        self.backend: Tokenizer = Tokenizer.from_str(report.backend)
        """The Rust tokenizer."""
        self.backend.encode_special_tokens = report.encode_special_tokens
        self.special_tokens = report.special_tokens
        """Control tokens by their names in templates: `eos_token` and so on."""
        self.chat_template = report.chat_template
        """One template, or several by name."""
        self.chat_control_tokens = report.chat_control_tokens
        """Control tokens that are not special, where the tokenizer names them."""
        self.eos_token_id = report.eos_token_id
        """The token that ends a sequence, if there is one."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Tokens beside the vocabulary, control tokens among them."""
        added: Mapping[int, AddedToken] = self.backend.get_added_tokens_decoder()
        return added

    def get_added_vocab(self) -> dict[str, int]:
        """Ids of the added tokens by their text."""
        return {token.content: token_id for token_id, token in self.added_tokens_decoder.items()}

    def __len__(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))


def load_tokenizer(model: str, *, trust_remote_code: bool = False) -> LoadedTokenizer:
    """The tokenizer of a model directory or hub id.

    Raises OSError where files cannot be read, ValueError where they are invalid or the tokenizer is
    Python code.
    """
    local_folder(model)  # a missing directory is not looked for on the hub
    if "transformers" in sys.modules:  # imported already
        return _load_in_this_process(model, trust_remote_code=trust_remote_code)
    entry = None
    if not trust_remote_code:
        entry = CacheEntry.of(model, Path(__file__).read_bytes(), os.environ)
    if entry is None:
        return LoadedTokenizer(load_in_child(model, trust_remote_code=trust_remote_code))

    data = entry.read()
    if data is not None:
        with suppress(msgspec.MsgspecError):  # the file is damaged
            return LoadedTokenizer(msgspec.json.decode(data, type=TokenizerReport))
    report = load_in_child(model)
    entry.write(msgspec.json.encode(report))
    return LoadedTokenizer(report)


def _load_in_this_process(model: str, *, trust_remote_code: bool) -> LoadedTokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        return LoadedTokenizer(describe(loaded))
    except OSError:
        raise
    # Damaged files raise what they run into, often without their name.
    except Exception as error:
        raise ValueError(f"the tokenizer of {model} cannot be loaded: {error}") from error


def load_backend(model: str, *, trust_remote_code: bool) -> Tokenizer:
    """Loads the tokenizer of a model directory or hub id.

    Raises:
        Invalid: the model has no tokenizer that can decode.
        OSError: its files cannot be read.
    """
    file = Path(model) / "tokenizer.json"
    if file.is_file():
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exceptions
            raise Invalid(f"{file} cannot be read: {error}", param="model") from error
    try:
        return load_tokenizer(model, trust_remote_code=trust_remote_code).backend
    except ValueError as error:
        raise Invalid(str(error), param="model") from error


def load_in_child(model: str, *, trust_remote_code: bool = False) -> TokenizerReport:
    """The report of a child process. Raises as `load_tokenizer`."""
    command = [sys.executable, "-m", __name__, model]
    if trust_remote_code:
        command.append("--trust-remote-code")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        command, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    if ran.returncode != 0:
        raise ValueError(f"the tokenizer of {model} cannot be loaded: {_last_line(ran.stderr)}")
    report = msgspec.json.decode(ran.stdout.rpartition(b"\n")[2], type=TokenizerReport)
    if report.unreadable:
        raise OSError(report.unreadable)
    if report.wrong:
        raise ValueError(f"the tokenizer of {model} cannot be loaded: {report.wrong}")
    return report


def describe(tokenizer: Any) -> TokenizerReport:
    """The report on one of transformers' tokenizers. Raises ValueError for one in Python
    code."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError("the model's tokenizer is Python code, which no parser can decode with")
    return TokenizerReport(
        backend=backend.to_str(),
        special_tokens=_texts(tokenizer.special_tokens_map),
        chat_template=tokenizer.chat_template,
        eos_token_id=tokenizer.eos_token_id,
        chat_control_tokens=_listed(getattr(tokenizer, "chat_control_tokens", None)),
        encode_special_tokens=backend.encode_special_tokens,
    )


def _listed(tokens: Any) -> list[str] | None:
    return None if tokens is None else list(map(str, tokens))


def _texts(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Named tokens as text: one, or a list of several."""
    return {
        name: list(map(str, token)) if isinstance(token, list | tuple) else str(token)
        for name, token in tokens.items()
    }


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason given"


def main(model: str, *flags: str) -> int:
    """Runs the child: writes one line of JSON to stdout."""
    trusts = "--trust-remote-code" in flags
    if not trusts:
        # Only a model's own code could need torch, which takes half of the time to import
        # transformers.
        sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    try:
        report = describe(AutoTokenizer.from_pretrained(model, trust_remote_code=trusts))
    except OSError as error:
        report = TokenizerReport(unreadable=str(error) or type(error).__name__)
    except ValueError as error:
        report = TokenizerReport(wrong=str(error) or type(error).__name__)
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
