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
    ends = (arguments.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    queries, keys = (one.diff().tolist() if isinstance(one, torch.Tensor) else [] for one in ends)
    unpadded = attention_mask is not None and attention_mask.shape[2:] == (sum(queries), sum(keys))
    if not unpadded or arguments.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    masks = [
        rows.split(keys, dim=3)[at] for at, rows in enumerate(attention_mask.split(queries, dim=2))
    ]
    requests = zip(
        query.split(queries, dim=2),
        key.split(keys, dim=2),
        value.split(keys, dim=2),
        masks,
        strict=True,
    )
    return torch.cat(
        [sdpa_attention_forward(module, *one, **arguments)[0] for one in requests], dim=1
    ), None
