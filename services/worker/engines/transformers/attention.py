"""Attention on a CPU that costs each request of a step its own keys.

The library passes all queries of a step, all keys that its requests read, and a mask, and `sdpa`
multiplies all by all. Of eight prompts in a step each would cost as much as eight, and the tails of
siblings more than what they share.
"""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def install() -> None:
    """Replaces `sdpa` in this process. Older releases (5.17) have another name for it in steps, and
    stay slow."""
    AttentionInterface.register("sdpa", attend)


def attend(
    module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any
) -> tuple[torch.Tensor, None]:
    """Returns what the library's `sdpa` does; one request of a step after the other."""
    queries = _lengths(arguments.get("cu_seq_lens_q"))
    keys = _lengths(arguments.get("cu_seq_lens_k"))
    step = (sum(queries), sum(keys))
    is_unpadded = attention_mask is not None and attention_mask.shape[2:] == step
    if not is_unpadded or arguments.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)

    rows = attention_mask.split(queries, dim=2)
    masks = [row.split(keys, dim=3)[at] for at, row in enumerate(rows)]
    requests = zip(
        query.split(queries, dim=2),
        key.split(keys, dim=2),
        value.split(keys, dim=2),
        masks,
        strict=True,
    )
    outputs = [sdpa_attention_forward(module, *request, **arguments)[0] for request in requests]
    return torch.cat(outputs, dim=1), None


def _lengths(ends: Any) -> list[int]:
    """Returns the length of each request from their cumulated ends; [] without them."""
    lengths: list[int] = ends.diff().tolist() if isinstance(ends, torch.Tensor) else []
    return lengths
