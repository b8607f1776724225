"""Model setups for chat templates, with a tokenizer that has every control token which the template writes."""

import re
from dataclasses import replace

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from services.families import family
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.audit import Audit
from services.preprocessor.prompt.history import History
from services.templates.chat_template import ChatTemplate
from services.templates.control_tokens import data_marks
from services.templates.detection import detect_family
from services.templates.probe import own_tags, probe
from services.tokenization.prompt_tokenizer import PromptTokenizer
from tests.tokenization.tokenizer_zoo import KINDS

_CONTROL = re.compile(r"<[|\uff5c][^\s<>{}'\"]+?[|\uff5c]>|</?[a-zA-Z_:]{2,24}>|\[/?[A-Z_]{3,24}\]")


def tokens_of(source: str) -> list[str]:
    """What looks like a control token in a template."""
    return sorted({*_CONTROL.findall(source), "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>"})


def tokenizer_with(kind: str, tokens: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind. Every other token is not special."""
    backend: Tokenizer = KINDS[kind]()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[::2]])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens[1::2]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.bos_token, tokenizer.eos_token = "<|bos|>", "<|eos|>"
    return tokenizer


def setup_for(setup: ModelSetup, source: str, kind: str = "byte_level") -> tuple[ModelSetup, PreTrainedTokenizerFast]:
    """`setup` with this template and a tokenizer for it."""
    loaded = tokenizer_with(kind, tokens_of(source))
    loaded.chat_template = source
    template = ChatTemplate(loaded, source)
    traits = probe(template)
    detection = detect_family(template, traits, {}, loaded.get_added_vocab())
    found = detection.family if detection is not None else family("hermes")
    traits = replace_tags(template, traits, found)
    tokenizer = PromptTokenizer(loaded)
    encoder = tokenizer.encoder("tokenizers", marks=data_marks(loaded, template, traits, found))
    history = History(template, traits, max_bytes=1 << 24)
    return replace(
        setup,
        template=template,
        traits=traits,
        tokenizer=tokenizer,
        encoder=encoder,
        history=history,
        audit=Audit(history, encoder),
        family=found,
        stop_ids=(),
    ), loaded


def replace_tags(template: ChatTemplate, traits, found):  # type: ignore[no-untyped-def]
    """The traits with the family's tags, as at load."""
    from msgspec.structs import replace as changed

    return changed(traits, own_tags=own_tags(template, traits, found))
