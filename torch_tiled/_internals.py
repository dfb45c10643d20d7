"""Every private name of PyTorch that this package uses, in one place.

An operator that takes part in every transform of PyTorch has no public way to say so yet. What it
needs is gathered here, so that a new PyTorch release is checked by reading one file;
tests/test_internals.py pins each name and what it is expected to do.
"""

import torch
from torch._C import (
    DispatchKey,
    DispatchKeySet,
)
from torch._C import (
    _after_ADInplaceOrView_keyset as AFTER_INPLACE,
)
from torch._C import (
    _after_autograd_keyset as AFTER_AUTOGRAD,
)
from torch._C import (
    _are_functorch_transforms_active as transforms_active,
)
from torch._C import (
    _AutoDispatchBelowAutograd as BelowAutograd,
)
from torch._C import (
    _ExcludeDispatchKeyGuard as ExcludeKeys,
)
from torch._C import (
    _is_any_autocast_enabled as autocast_active,
)
from torch._C import (
    _len_torch_dispatch_stack as dispatch_modes,
)
from torch._C import (
    _len_torch_function_stack as function_modes,
)
from torch._C import (
    _will_engine_execute_node as will_run,
)
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
from torch._functorch.autograd_function import custom_function_call_vmap_helper as apply_vmap_rule
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter as current_interpreter,
)
from torch._functorch.utils import (
    enable_single_level_autograd_function as allow_single_level_function,
)
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled as set_forward_ad_enabled
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import GetAttrKey, register_pytree_node

__all__ = [
    "AFTER_AUTOGRAD",
    "AFTER_INPLACE",
    "BelowAutograd",
    "DispatchKey",
    "DispatchKeySet",
    "ExcludeKeys",
    "GetAttrKey",
    "SingleLevelFunction",
    "allow_single_level_function",
    "apply_vmap_rule",
    "argument_names",
    "autocast_active",
    "call_without_python",
    "count_as_different_products",
    "current_interpreter",
    "dispatch_modes",
    "forward_ad_active",
    "function_modes",
    "gradients_asked_for",
    "is_wrapped",
    "redispatch_without_python",
    "register_pytree_node",
    "set_forward_ad_enabled",
    "transforms_active",
    "version_of",
]


class SingleLevelFunction(_SingleLevelFunction):
    """The function of one level of differentiation."""

    _compiled_autograd_key = torch.autograd.Function._compiled_autograd_key


def forward_ad_active():
    """Whether a tensor may carry a forward-mode tangent."""
    return forward_ad._current_level >= 0


def gradients_asked_for(ctx, needed):
    """Of those tensors of a Function whose gradients are needed at all, which this pass asks for.

    torch.autograd.grad(y, x) wants no gradients of weights, but ctx.needs_input_grad does not say.

    Args:
        ctx: that of a backward in the making.
        needed: for each tensor that the Function was applied to, in order, a bool. None may follow.
    """
    if sum(needed) < 2:  # or it would not run
        return needed
    edges = ctx.next_functions
    return [need and _is_asked_for(edges[i][0]) for i, need in enumerate(needed)]


def _is_asked_for(node):
    try:
        return will_run(node)
    except RuntimeError:  # the gradient of a leaf, which is asked for and not accumulated
        return True


def call_without_python(overload):
    """The callable inside an OpOverload: the same call, less one Python frame."""
    return overload._op


def redispatch_without_python(overload):
    """OpOverload.redispatch, less one Python frame."""
    return overload._handle.redispatch_boxed


def argument_names(overload):
    return [argument.name for argument in overload._schema.arguments]


def count_as_different_products(overload, *options):
    """Makes DTensor ask the sharding rule anew where these keyword options differ.

    torch.distributed.tensor.experimental.register_sharding has it do so for integers alone, and
    otherwise use the rule's answer for other options.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = DTensor._op_dispatcher.sharding_propagator
    rule = propagator.op_strategy_funcs[overload]
    info = RuntimeSchemaInfo(static_kwargkey=list(options), needs_pytree=True)
    propagator.register_op_strategy(overload, rule, info)


def version_of(tensor):
    """How often a tensor was written to, or None for one that does not count."""
    return None if tensor.is_inference() else tensor._version
