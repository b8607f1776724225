"""Makes a model for any chat template: the demo model's tokenizer with the template's control
tokens."""

import json
import re
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.families import families
from services.ledger.prompt.model import LedgerModel
from services.ledger.turn_ledger import TurnLedger
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig
from services.templates.jinja import environment
from turnwire_tools.script.demo_model import build_demo_model

_CONTROL = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_(?:turn|utterance)>|<turn\|>|\[/?[A-Z_]{3,}\]"
)
_END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|return|>", "<|END_OF_TURN_TOKEN|>"),
    *("<end_of_turn>", "<turn|>", "<|end|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
    *("<|assistant_end|>", "<｜hy_eos:opensource｜>", "<|message_sep|>"),
)
"""Tokens that end a turn, the most specific first. A model's generation_config would name them."""
_ALSO_ENDS = ("<|call|>", "<|eom_id|>", "<|tool_response>")
_BOS, _EOS = "<s>", "</s>"
ROOM = 1 << 28
"""Bytes for the entries and for the prompts of a ledger."""


class LedgerSetup(ModelSetup):
    """A setup with the model of its ledgers, which takes 20 ms to make and has no state of a
    session."""

    @cached_property
    def ledger_model(self) -> LedgerModel:
        return open_ledger(self, entry_bytes=ROOM, prompt_bytes=ROOM).model


def empty_ledger(setup: ModelSetup, entry_bytes: int = ROOM) -> TurnLedger:
    """An empty ledger. All ledgers of a `LedgerSetup` share its model."""
    if isinstance(setup, LedgerSetup):
        return TurnLedger(setup.ledger_model, entry_bytes=entry_bytes, prompt_bytes=ROOM)
    return open_ledger(setup, entry_bytes=entry_bytes, prompt_bytes=ROOM)


def build(
    template: str, directory: Path, description: Mapping[str, Any] | None = None
) -> ModelSetup:
    """Makes a model with this template, read by its `response_template`, if there is a
    `description`. Raises ValueError if no family reads its calls."""
    base = build_demo_model(Path(tempfile.gettempdir()) / "turnwire-bench-demo")
    directory.mkdir(parents=True, exist_ok=True)
    controls = set(_CONTROL.findall(template + _rendered(template)))
    ends = [token for token in _END_TOKENS if token in controls]
    eos = ends[0] if ends and "eos_token" not in template else _EOS
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    known = families().values()
    stops = {stop for family in known for stop in family.stops if stop in template}
    special = controls | stops | {_BOS, _EOS}
    markers = {marker for family in known for marker in family.markers if marker in template}
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in sorted(special)]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token in sorted(markers - special)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(template)
    also = [tokenizer.token_to_id(token) for token in _ALSO_ENDS if token in controls]
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _BOS,
            "eos_token": eos,
            "clean_up_tokenization_spaces": False,
        },
        "config.json": {"model_type": "bert", "max_position_embeddings": 1_000_000},
        "generation_config.json": {"eos_token_id": [tokenizer.token_to_id(eos), *also]},
    }
    if description is not None:
        documents["response_template.json"] = dict(description)
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document))
    config = PreprocessorConfig(
        model=str(directory),
        served_model_name="m",
        tokenizer="tokenizers",
        response_template=str(directory / "response_template.json") if description else None,
    )
    return LedgerSetup.load(config)


def _rendered(template: str) -> str:
    """Renders a small conversation, because some templates build their control tokens from
    pieces."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    variables = {"add_generation_prompt": True, "bos_token": _BOS, "eos_token": _EOS}
    try:
        return (
            environment().from_string(template).render(messages=messages, tools=None, **variables)
        )
    except Exception:  # the template requires more than this
        return ""
