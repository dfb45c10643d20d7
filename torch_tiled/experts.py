"""Mixtures of experts of transformers: their products by torch_tiled.grouped_mm."""

import functools

import torch

from .grouped import grouped_mm
from .ops import check_precision

__all__ = ["register"]


def register(name: str = "torch_tiled", *, precision: str = "fp32") -> None:
    """Adds torch_tiled to the implementations of experts that transformers knows.

    A model takes it by model.set_experts_implementation(name), or if it is loaded with
    experts_implementation=name. Each of its mixtures of experts is then two grouped products, by
    offsets that stay on the GPU. Dtypes are the weights', and autocast regions cast as for matmul.

    Args:
        name: of the implementation; one of this name is replaced.
        precision: as for torch_tiled.grouped_mm.

    Raises:
        RuntimeError: there is no such precision.
        ImportError: there is no transformers, or one without experts' implementations, which came
            with transformers 5.

    Examples:
        >>> import importlib.util
        >>> if importlib.util.find_spec("transformers"):
        ...     torch_tiled.experts.register()
    """
    check_precision("torch_tiled.experts.register", precision)
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(name, functools.partial(_forward, precision=precision))


def _forward(experts, hidden_states, top_k_index, top_k_weights, *, precision):
    """The sum over a token's experts of their results, by the weights that the router gave them."""
    tokens, top_k = top_k_index.shape
    # An expert's rows are adjacent. With expert parallelism the last ones have an id that is no
    # expert's here: their results are zeros.
    ids, order = top_k_index.reshape(-1).sort(stable=True)
    numbers = torch.arange(experts.num_experts, device=ids.device, dtype=ids.dtype)
    offs = torch.searchsorted(ids, numbers, right=True, out_int32=True)

    def linear(x, name):
        weight = getattr(experts, name)
        bias = getattr(experts, f"{name}_bias") if experts.has_bias else None
        weight_t = weight if experts.is_transposed else weight.mT
        return grouped_mm(x.to(weight.dtype), weight_t, offs=offs, bias=bias, precision=precision)

    x = hidden_states[order // top_k]
    if experts.has_gate:
        x = experts._apply_gate(linear(x, "gate_up_proj"))
    else:
        x = experts.act_fn(linear(x, "up_proj"))
    x = linear(x, "down_proj")
    if getattr(experts, "has_post_expert_norm", False):
        x = experts.post_expert_norm(x)
    x = x * top_k_weights.reshape(-1)[order, None]
    x = x[order.argsort()].view(tokens, top_k, -1)  # no atomic addition
    return x.sum(1).to(hidden_states.dtype)
