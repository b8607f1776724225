"""Makes model setups for chat templates, each with a tokenizer that has every control token of the
template."""

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as changed
from tokenizers import AddedToken, Tokenizer

from schemas.conversation import Call, Conversation, Message, Reasoning, Result, Text, ToolSpec
from services.families import family
from services.preprocessor.model import ModelSetup
from services.templates.chat_template import ChatTemplate
from services.templates.control_tokens import data_marks
from services.templates.detection import detect_family
from services.templates.probe import probe, reasoning_tags
from services.tokenization.encoder import Encoder
from services.tokenization.prompt_tokenizer import PromptTokenizer
from tests.kit.tokenizer_zoo import KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CONTROL = re.compile(r"<[|\uff5c][^\s<>{}'\"]+?[|\uff5c]>|</?[a-zA-Z_:]{2,24}>|\[/?[A-Z_]{3,24}\]")
_MORE = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|im_end")


def tokens_of(source: str) -> list[str]:
    """Texts like control tokens in a template, and some that begin each other or that templates
    build."""
    return sorted({*_CONTROL.findall(source), *_MORE})


def tokenizer_with(kind: str, tokens: list[str]) -> "PreTrainedTokenizerFast":
    """A tokenizer of this kind. Every other token is not special."""
    import transformers

    backend: Tokenizer = KINDS[kind]()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens[::2]]
    )
    backend.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in tokens[1::2]]
    )
    make: Any = transformers.PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = make(tokenizer_object=backend)
    tokenizer.bos_token, tokenizer.eos_token = "<|bos|>", "<|eos|>"
    return tokenizer


def setup_for(
    setup: ModelSetup, source: str, kind: str = "byte_level"
) -> "tuple[ModelSetup, PreTrainedTokenizerFast]":
    """`setup` with this template and a tokenizer for it, and the tokenizer."""
    loaded = tokenizer_with(kind, tokens_of(source))
    loaded.chat_template = source
    template = ChatTemplate(loaded, source)
    traits = probe(template)
    detection = detect_family(template, traits, {}, loaded.get_added_vocab())
    found = detection.family if detection is not None else family("hermes")
    traits = changed(traits, reasoning_tags=reasoning_tags(template, traits, found))
    tokenizer = PromptTokenizer(loaded)
    marks = data_marks(loaded, template, traits, found)
    encoder = Encoder.load(tokenizer.backend, choice="tokenizers", marks=marks)
    made = replace(
        setup,
        template=template,
        traits=traits,
        tokenizer=tokenizer,
        encoder=encoder,
        family=found,
        stop_ids=(),
    )
    return made, loaded


def conversation(data: str, key: str) -> Conversation:
    """An agent's conversation with `data` in every text from outside, and `key` as the name of
    parameters."""
    properties = {
        "city": {"type": "string", "description": data},
        key: {"type": "string", "enum": [data]},
    }
    tool = ToolSpec(
        "look", f"Looks. {data}", {"type": "object", "properties": properties, "required": [key]}
    )
    arguments = json.dumps({"city": f"Paris {data}", key: data})
    return Conversation(
        "m",
        [
            Message("user", [Text(f"Read it. {data} So.")]),
            Message(
                "assistant",
                [Reasoning(f"I see {data} there."), Call("call00001", "look", arguments)],
            ),
            Message("tool", [Result("call00001", [Text(f"begin {data}\n{data}")])]),
            Message("assistant", [Text("Done.")]),
            Message("user", [Text(data)]),
        ],
        system=[Text(f"Be brief. {data}")],
        tools=[tool],
    )
