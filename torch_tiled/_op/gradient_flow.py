"""Asks if a derivative flows through a tensor: a gradient, or a tangent of forward-mode AD."""

import torch

from .._internals import forward_ad_active, has_tangent, may_be_in_a_graph, transforms_active


def is_differentiated(*tensors):
    """Returns whether a gradient or a tangent may flow through any of these tensors (or None).

    In a compiled or exported graph torch.func.jvp shows by its transform, and not by its level of
    forward AD. A level without a transform shows by the tensors alone, which
    is_differentiated_in_graph() looks at.
    """
    return forward_ad_active() or transforms_active() or may_require_grad(*tensors)


def may_require_grad(*tensors):
    """is_differentiated() of tensors for which is_plain() holds, and which have no tangent."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def is_differentiated_in_graph(*tensors):
    """is_differentiated() for kernels, which a compiled or exported graph may call.

    Looking for a tangent costs about a microsecond for each tensor.
    """
    if is_differentiated(*tensors):
        return True
    if not (may_be_in_a_graph() and torch.is_grad_enabled()):
        return False
    return any(tensor is not None and has_tangent(tensor) for tensor in tensors)


def why_differentiated(tensor):
    """Returns why a derivative flows through this tensor, as a predicate of it, or None."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return "requires grad"
    if (forward_ad_active() or may_be_in_a_graph()) and has_tangent(tensor):
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
