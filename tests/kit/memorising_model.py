"""A causal language model that writes texts that it has memorised: real attention and a real KV
cache, without training.

One layer of Qwen2. Each head attends to the token at one distance, by rotary positions alone, and
copies its code. A unit of the MLP recognises the codes that precede a token of a memorised text,
and writes that token. So the length and the content of the prompt do not matter, and a wrong
position or a wrong entry of the cache shows as a wrong token. Outside of the memorised texts the
model ends its turn.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WINDOW = 131_072
_WIDTH = 16
"""Dimensions of a token's code, and of a head."""
_OUT = 64
"""Dimensions in which the MLP writes the next token."""
_THETA = 10_000.0
_FOCUS = 400.0
"""Sharpness of the attention."""
_WRITTEN = 1000.0
"""Size of the next token's mark in the residual stream; beside it the rest vanishes in the last
norm."""
_CERTAINTY = 8.0
"""Size of the logits: no temperature that clients send changes what is written."""
_SLACK = 0.05
"""What a context may differ from a memorised one, as a part of one token's code."""


def build_memorising_model(path: Path, texts: Mapping[str, str]) -> Path:
    """Writes config and weights into the model directory at `path`, which has the tokenizer.

    Args:
        texts: What the model writes, by the end of the prompt before it. Both are tokenized on
            their own.

    Raises ValueError where as many tokens as the shortest opening has do not tell what follows.
    """
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    end = tokenizer.eos_token_id
    lessons = [
        (tokenizer.encode(opening), [*tokenizer.encode(text), end])
        for opening, text in texts.items()
    ]
    distances, contexts = _contexts(lessons)
    torch.manual_seed(0)
    blocks = len(distances)
    one, out = blocks * _WIDTH, slice(blocks * _WIDTH + 1, blocks * _WIDTH + 1 + _OUT)
    configuration: Any = transformers.Qwen2Config
    config = configuration(
        vocab_size=len(tokenizer),
        hidden_size=out.stop,
        intermediate_size=len(contexts),
        num_hidden_layers=1,
        num_attention_heads=blocks - 1,
        num_key_value_heads=1,
        head_dim=_WIDTH,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        rms_norm_eps=1e-12,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = transformers.Qwen2ForCausalLM(config)
    layer = model.model.layers[0]
    codes = torch.nn.functional.normalize(torch.randn(len(tokenizer), _WIDTH), dim=-1)
    marks = torch.nn.functional.normalize(torch.randn(len(tokenizer), _OUT), dim=-1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # The residual stream: a code for each distance, a one, and the next token. The norms undo
        # themselves.
        model.model.embed_tokens.weight[:, :_WIDTH] = codes
        model.model.embed_tokens.weight[:, one] = 1.0
        layer.input_layernorm.weight.fill_(math.sqrt(2 / out.stop))
        layer.post_attention_layernorm.weight.fill_(math.sqrt((blocks + 1) / out.stop))
        model.model.norm.weight.fill_(1.0)
        attention = layer.self_attn
        attention.k_proj.bias[: _WIDTH // 2] = 1.0
        attention.v_proj.weight[:, :_WIDTH] = torch.eye(_WIDTH)
        frequencies = _THETA ** (-torch.arange(0, _WIDTH, 2) / _WIDTH)
        for head, back in enumerate(distances[1:]):
            distance = back - 1
            query = torch.cat(
                [torch.cos(frequencies * distance), -torch.sin(frequencies * distance)]
            )
            attention.q_proj.bias[head * _WIDTH : (head + 1) * _WIDTH] = _FOCUS * query
            attention.o_proj.weight[(head + 1) * _WIDTH :, head * _WIDTH :][:_WIDTH, :_WIDTH] = (
                torch.eye(_WIDTH)
            )
        for unit, (context, token) in enumerate(contexts.items()):
            layer.mlp.gate_proj.weight[unit, :one] = codes[list(context)].flatten() / _SLACK
            layer.mlp.gate_proj.weight[unit, one] = (_SLACK - blocks) / _SLACK
            layer.mlp.up_proj.weight[unit, one] = 1.0
            layer.mlp.down_proj.weight[out, unit] = _WRITTEN * marks[token]
        model.lm_head.weight[:, out] = _CERTAINTY * marks
        model.lm_head.weight[end, one] = _CERTAINTY
    generation = (path / "generation_config.json").read_bytes()
    model.save_pretrained(path)
    (path / "generation_config.json").write_bytes(generation)
    return path


def _contexts(
    lessons: Sequence[tuple[list[int], list[int]]],
) -> tuple[list[int], dict[tuple[int, ...], int]]:
    """As few distances as tell all contexts apart; and the tokens at these distances before a token
    → that token."""
    places = [
        ([*opening, *text], at + len(opening))
        for opening, text in lessons
        for at in range(len(text))
    ]
    farthest = min(len(opening) for opening, _ in lessons)
    distances = [1, 2]  # 1 is the last token itself, and needs no head
    while True:
        first: dict[tuple[int, ...], tuple[list[int], int]] = {}
        for ids, at in places:
            other, there = first.setdefault(tuple(ids[at - back] for back in distances), (ids, at))
            if other[there] != ids[at]:
                backs = (
                    back for back in range(1, farthest + 1) if other[there - back] != ids[at - back]
                )
                if (back := next(backs, None)) is None:
                    raise ValueError(f"two tokens follow {ids[at - farthest : at]}")
                distances.append(back)
                break
        else:
            return distances, {context: ids[at] for context, (ids, at) in first.items()}
