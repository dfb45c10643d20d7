"""Attention of transformers' models by torch_tiled.nn.functional."""

import functools

from ._key_places import from_first_key, in_sequences
from .nn.functional import attention, runs_on_gpu

__all__ = ["register"]

# The arguments of a layer of packed sequences, as continuous batching passes them.
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def register(name: str = "torch_tiled") -> None:
    """Adds torch_tiled to the implementations of attention that transformers knows.

    A model takes it by model.set_attn_implementation(name), or if it is loaded with
    attn_implementation=name. Masks are made as for "sdpa". Its attention is
    torch_tiled.nn.functional.scaled_dot_product_attention in the cases in which "auto" computes
    fp16x3 there, and no heads are copied. It is transformers' "sdpa" otherwise, and also with
    dropout, with a bias of positions (as T5 has) and for output_attentions.

    A prompt has the same bits alone, in a batch that is padded on either side, and packed by
    continuous batching, which takes no name but "sdpa": pass that.

    Args:
        name: of the implementation; one of this name is replaced.

    Raises:
        ImportError: there is no transformers, or one without the tables of attention and its masks,
            which transformers 5 has.

    Examples:
        >>> import importlib.util
        >>> if importlib.util.find_spec("transformers"):
        ...     torch_tiled.attention.register()
    """
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            f"torch_tiled.attention.register: {error}; install transformers 5"
        ) from error
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    ALL_ATTENTION_FUNCTIONS.register(name, _forward)


def _forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    **options,
):
    """The attention of a layer as (batch, queries, heads, columns), and no weights."""
    for option in ("softcap", "s_aux"):
        if options.get(option) is not None:
            raise RuntimeError(
                f"torch_tiled.attention: {type(module).__name__} passes {option}, which only "
                f'eager attention computes; call model.set_attn_implementation("eager")'
            )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    attend = functools.partial(_attend, module, dropout, scaling, is_causal, options)
    ends = [options.get(name) for name in _PACKED]
    is_packed = attention_mask is not None and all(x is not None for x in ends)
    if not is_packed or query.shape[0] != 1 or options.get("position_bias") is not None:
        return attend(query, key, value, attention_mask), None
    return in_sequences(attend, query, key, value, attention_mask, *ends), None


def _attend(module, dropout, scaling, is_causal, options, query, key, value, mask):
    is_left = dropout != 0 or options.get("position_bias") is not None
    is_left = is_left or options.get("output_attentions", False)
    if is_left or not runs_on_gpu(query, key, value, mask):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        given = module, query, key, value, mask
        return sdpa_attention_forward(*given, dropout, scaling, is_causal, **options)[0]
    if is_causal:  # encoders pad on the right
        key, value, mask = from_first_key(key, value, mask)
    # One query is the last one, which sees every key; a mask is causal itself.
    is_causal = query.shape[2] > 1 and mask is None and is_causal
    out = attention(query, key, value, mask, is_causal, scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous()
