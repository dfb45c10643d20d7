"""torch.einsum of two or more operands, as a sequence of matrix products."""

import math
from collections.abc import Callable, Hashable

import torch
from torch.backends import opt_einsum
from torch.compiler import is_compiling

__all__ = ["einsum"]

# A label for each of a tensor's dimensions: its letter in the equation or, for the dimensions that
# "..." covers, a negative number, counted from the last one.
_Labels = list[Hashable]


def einsum(
    equation: str,
    *operands: torch.Tensor,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    total: Callable[[torch.Tensor, list[int]], torch.Tensor],
    from_left: bool = False,
) -> torch.Tensor | None:
    """torch.einsum(equation, *operands), by matrix products in the order of torch.einsum.

    Args:
        equation: as for torch.einsum, with letters and "...".
        operands: two or more tensors.
        multiply: multiply(a, b) returns the product of (*batch, m, k) and (*batch, k, n), with one
            batch dimension or none.
        total: total(x, dims) returns the sum over these dimensions.
        from_left: multiply from left to right, whatever the sizes are.

    Returns:
        The result, or None for an equation that torch.einsum refuses.
    """
    parsed = _parse(equation, operands)
    if parsed is None:
        return None
    inputs, output = parsed
    pairs = [_without_repeats(x, labels) for x, labels in zip(operands, inputs, strict=True)]
    for i, j in _path(equation, operands, from_left):
        others = [pair for k, pair in enumerate(pairs) if k not in (i, j)]
        kept = set(output).union(*(labels for _, labels in others))
        pairs = [*others, _multiply_pair(*pairs[i], *pairs[j], kept, multiply, total)]
    ((result, labels),) = pairs
    return result.permute([labels.index(label) for label in output])


def _path(equation, operands, from_left):
    """Returns the pairs of operands to multiply. Each product is appended to the other operands.

    The order is torch.einsum's: opt_einsum's if that is enabled, else from left to right. Compiled
    code multiplies from left to right, since its sizes may be symbolic.
    """
    by_sizes = opt_einsum.enabled and not (from_left or is_compiling())
    if len(operands) > 2 and by_sizes:
        find = opt_einsum.get_opt_einsum().contract_path
        return find(equation, *operands, optimize=opt_einsum.strategy)[0]
    return [(0, 1), *((last, 0) for last in range(len(operands) - 2, 0, -1))]


def _parse(equation, operands) -> tuple[list[_Labels], _Labels] | None:
    """Returns the labels of each operand, and of the output."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        return None
    parsed, most = [], 0
    for term, operand in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        hidden = operand.dim() - len(before + after)
        if hidden < 0 or (hidden > 0 and not dots) or not _are_letters(before + after):
            return None
        most = max(most, hidden)
        parsed.append([*before, *range(-hidden, 0), *after])
    if not _sizes_fit(parsed, operands):
        return None
    hidden = range(-most, 0)
    letters = [label for labels in parsed for label in labels if isinstance(label, str)]
    if not arrow:
        once = (letter for letter in set(letters) if letters.count(letter) == 1)
        return parsed, [*hidden, *sorted(once)]
    before, dots, after = output.partition("...")
    named = before + after
    if not set(named) <= set(letters) or len(set(named)) != len(named):
        return None
    return parsed, [*before, *(hidden if dots else ()), *after]


def _are_letters(text: str) -> bool:
    return text == "" or (text.isascii() and text.isalpha())


def _sizes_fit(parsed, operands) -> bool:
    """Returns whether sizes of one label are the same in an operand, and broadcast among them."""
    common = {}
    for labels, operand in zip(parsed, operands, strict=True):
        own = {}
        for label, size in zip(labels, operand.shape, strict=True):
            if own.setdefault(label, size) != size:
                return False
            if size != 1 and common.setdefault(label, size) != size:
                return False
    return True


def _without_repeats(x, labels):
    """Takes the diagonal of dimensions that have the same label."""
    labels = list(labels)
    for label in set(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(dim1=first, dim2=second)
            del labels[second], labels[first]
            labels.append(label)
    return x, labels


def _multiply_pair(a, a_labels, b, b_labels, kept, multiply, total):
    """Multiplies two tensors, and sums over all labels that are not kept."""
    # A product sums over a label only if neither of its sizes is 1, as in torch.einsum: autocast
    # regions cast the operands of products alone.
    a_long, b_long = _long(a, a_labels), _long(b, b_labels)
    a, a_labels = _summed(a, a_labels, kept.union(a_long & b_long), total)
    b, b_labels = _summed(b, b_labels, kept.union(a_long & b_long), total)
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    rows = [label for label in a_labels if label not in shared]
    cols = [label for label in b_labels if label not in shared]
    sizes = dict(zip(a_labels, a.shape, strict=True))
    for label, size in zip(b_labels, b.shape, strict=True):
        if sizes.get(label, 1) == 1:
            sizes[label] = size

    def laid_out(x, labels, *groups):
        """Permutes x to the labels of groups in order, and expands broadcast dimensions."""
        order = [label for group in groups for label in group]
        x = x.permute([labels.index(label) for label in order])
        return x.expand([sizes[label] for label in order])

    labels = [*batch, *rows, *cols]
    if not inner:
        a = laid_out(a, a_labels, batch, rows)
        b = laid_out(b, b_labels, batch, cols)
        for _ in cols:
            a = a.unsqueeze(-1)
        for _ in rows:
            b = b.unsqueeze(len(batch))
        return a * b, labels

    def size(group):
        return math.prod([sizes[label] for label in group])

    leading = [size(batch)] if batch else []
    a = laid_out(a, a_labels, batch, rows, inner).reshape(*leading, size(rows), size(inner))
    b = laid_out(b, b_labels, batch, inner, cols).reshape(*leading, size(inner), size(cols))
    return multiply(a, b).reshape([sizes[label] for label in labels]), labels


def _long(x, labels):
    """Returns the labels with sizes other than 1."""
    return {label for label, size in zip(labels, x.shape, strict=True) if size != 1}


def _summed(x, labels, kept, total):
    dims = [i for i, label in enumerate(labels) if label not in kept]
    if not dims:
        return x, labels
    return total(x, dims), [label for label in labels if label in kept]
