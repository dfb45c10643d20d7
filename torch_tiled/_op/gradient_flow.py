"""Asks if a derivative flows through a tensor: a gradient, or a tangent of forward-mode AD."""

import torch
from torch.autograd.forward_ad import unpack_dual

from .._internals import forward_ad_active


def is_differentiated(*tensors):
    """Returns whether a gradient or a tangent may flow through any of these tensors (or None)."""
    if forward_ad_active():
        return True
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def why_differentiated(tensor):
    """Returns why a derivative flows through this tensor, as a predicate of it, or None."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return "requires grad"
    if forward_ad_active() and unpack_dual(tensor).tangent is not None:
        return "has a forward-mode tangent"
    return None


def refuse_derivative_of_prepared(op, name, tensor):
    """Raises a RuntimeError if a derivative flows through a prepared operand."""
    if why := why_differentiated(tensor):
        raise RuntimeError(
            f"{op}: {name} of shape {tuple(tensor.shape)} {why}, and a prepared operand has no "
            f"derivative; call torch_tiled.unfreeze(model) to train a frozen layer or, if no "
            f"derivative is needed, work under torch.no_grad(), or prepare {name}.detach()"
        )
