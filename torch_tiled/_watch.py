"""Watches a model's modules and operators, and compares a sample's bits alone and in a batch."""

import dataclasses
import functools
from collections import Counter
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NONE = "no operator"
END = -1  # in the key of a module's end, in place of the number of a call
_WORDS = 1 << 20


def bits(x: torch.Tensor) -> torch.Tensor | None:
    """Returns the bits of x as a vector of integers, or None if x is not a dense tensor."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.is_nested or x.is_meta:
        return None
    if x.layout is not torch.strided or x.is_quantized:
        return None
    x = x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return x.reshape(-1).view({1: torch.uint8, 2: torch.int16}.get(x.element_size(), torch.int32))


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(1 << 63), (1 << 63) - 1, (_WORDS,), generator=generator).to(device)


def digest(x: torch.Tensor) -> list[int] | None:
    """Returns sums of x's bits by random weights modulo 2^64, computed on x's device.

    Two tensors with other bits have the same digest by a chance of at most 2^-32.
    """
    if (words := bits(x)) is None:
        return None
    weights = _weights(x.device)
    sums = [(part * weights[: len(part)]).sum() for part in words.split(_WORDS)]
    return torch.stack(sums).tolist()


def described(x: torch.Tensor) -> tuple[torch.Size, torch.dtype, list[int] | None]:
    return x.shape, x.dtype, digest(x)


def rows(x: torch.Tensor, shape: torch.Size, place: int, size: int) -> list[torch.Tensor]:
    """Returns what may be the rows of one sample in a tensor of a batch.

    Args:
        x: the batch's tensor.
        shape: that of the sample's tensor alone. A dimension of x is `size` times as long, or none.
        place: the sample's place in the batch.
        size: how many samples the batch has.
    """
    if x.shape == shape:
        return [x]
    longer = [d for d in range(min(x.dim(), len(shape))) if x.shape[d] != shape[d]]
    if x.dim() != len(shape) or len(longer) > 1 or x.shape[longer[0]] != size * shape[longer[0]]:
        return []
    dim, length = longer[0], shape[longer[0]]
    found = [x.narrow(dim, place * length, length)]  # (batch * tokens, columns)
    if length > 1:  # (tokens * batch, columns)
        found.append(x.unflatten(dim, (length, size)).select(dim + 1, place))
    return found


def relative(alone: torch.Tensor, rows: torch.Tensor) -> float:
    """Returns the largest difference, divided by the largest finite element of alone."""
    wide = torch.complex128 if alone.is_complex() else torch.float64
    a, b = alone.to(wide), rows.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = (a - b).abs().masked_fill(same, 0).nan_to_num(torch.inf)
    largest = a.abs().nan_to_num(0, posinf=0).max()
    return (difference.max() / largest).item() if difference.any() else 0.0


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Returns the tensors in tuples, lists, dicts and dataclasses."""
    found = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors_in([getattr(leaf, each.name) for each in dataclasses.fields(leaf)])
    return found


# Operators that move data, or return memory without values. They round nothing, and those of a
# sample alone may be others than those of a batch: a reshape is a view or a copy.
_MOVES = frozenset(
    "_reshape_alias _to_copy _unsafe_view cat clone contiguous copy copy_ empty_like flip gather "
    "index index_select lift_fresh new_empty new_empty_strided repeat repeat_interleave roll "
    "stack".split()
)


class Watch(TorchDispatchMode):
    """Calls begin() before and end() after every operator of a run, and end() after every module.

    The key of a call is the module that calls it, which call of the module it is, and which call
    within that one. Global hooks tell the modules: hooks of a module's own would keep
    torch.nn.TransformerEncoder from its fast path.
    """

    supports_higher_order_operators = True

    def __init__(self, names: dict[torch.nn.Module, str], parameters: set[int]) -> None:
        super().__init__()
        self.names, self.parameters = names, parameters
        self.calls, self.stack = Counter(), [["", 0, 0]]
        self.is_ours = False  # the operators that a hook calls; those called below have no mode

    def __enter__(self):
        self.handles = (
            module_hooks.register_module_forward_pre_hook(self.enter_module),
            module_hooks.register_module_forward_hook(self.leave_module, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()
        return super().__exit__(*error)

    def enter_module(self, module, args):
        if module in self.names:
            name = self.names[module]
            self.calls[name] += 1
            self.stack.append([name, self.calls[name], 0])

    def leave_module(self, module, args, result):
        name = self.names.get(module)
        if name is None or result is None or all(frame[0] != name for frame in self.stack[1:]):
            return
        while self.stack[-1][0] != name:  # an exception ended them
            self.stack.pop()
        self.leave(tensors_in(result))

    def leave(self, outputs: list[torch.Tensor]) -> None:
        """Tells end() of the end of a module, or of a function that is no module's."""
        name, call, count = self.stack.pop()
        self.is_ours = True
        for key, these in (((name, call, count), []), ((name, call, END), outputs)):
            self.end(key, self.begin(key, NONE, []), these)
        self.is_ours = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        arguments = func._schema.arguments if hasattr(func, "_schema") else ()
        outs = {each.name for each in arguments if each.is_out}
        given = tensors_in((args, {k: v for k, v in kwargs.items() if k not in outs}))
        inputs = [x for x in given if not self.is_parameter(x)]
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        name = str(getattr(func, "overloadpacket", func))
        is_move = getattr(func, "is_view", False) or name.rpartition(".")[2] in _MOVES
        if self.is_ours or is_move or not (inputs or is_random):
            return func(*args, **kwargs)
        frame = self.stack[-1]
        key = tuple(frame)
        frame[2] += 1
        # Numbers may be read from a tensor of the batch, so they are inputs, too.
        floats = [torch.tensor(x) for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
        begun = self.begin(key, name, [] if is_random else inputs + floats)
        result = func(*args, **kwargs)
        self.end(key, begun, tensors_in(result) or inputs)  # inputs if it writes into them
        return result

    def is_parameter(self, x: torch.Tensor) -> bool:
        strided = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        return strided and x.untyped_storage().data_ptr() in self.parameters

    def begin(self, key: tuple, name: str, inputs: list[torch.Tensor]) -> Any:
        return None

    def end(self, key: tuple, begun: Any, outputs: list[torch.Tensor]) -> None:
        return None


class Alone(Watch):
    """Keeps the shapes and digests of a sample alone, by the keys of calls."""

    def __init__(self, *args):
        super().__init__(*args)
        self.record = {}

    def begin(self, key, name, inputs):
        return name, [described(x) for x in inputs]

    def end(self, key, begun, outputs):
        self.record[key] = *begun, [described(x) for x in outputs]


class Grab(Watch):
    """Keeps the outputs of one call."""

    def __init__(self, *args, key: tuple):
        super().__init__(*args)
        self.key, self.outputs = key, []

    def end(self, key, begun, outputs):
        if key == self.key:
            self.outputs = [x.clone() for x in outputs]


class Together(Watch):
    """Compares a batch with the records of its samples alone.

    Attributes:
        first: by place in the batch, the key and the name of the first operator with equal inputs
            and different outputs; or, if other operators are called in a batch, the key of the end
            of their module and the names of the first two of them. Integers and bools do not
            count: they are often places and counts, as in the sorted tokens of a mixture of
            experts.
        results: the key, the name and the result of each call, for each place.
    """

    def __init__(self, *args, records: list[dict]):
        super().__init__(*args)
        self.records = records
        self.first, self.results = {}, []
        self.parted = {}  # the names of operators that are not the same, by place, module and call

    def begin(self, key, name, inputs):
        """Returns the outputs alone and whether the inputs are equal, for each place."""
        begun = []
        for place, record in enumerate(self.records):
            before, given, outputs = record.get(key, (NONE, [], []))
            where = place, *key[:2]
            if before != name:
                self.parted.setdefault(where, f"{before} alone, {name} in the batch")
            if key[2] != END and where in self.parted:
                begun.append(([], False))
            else:
                begun.append((outputs, all(self.same(inputs, given, place))))
        return name, begun

    def end(self, key, begun, outputs):
        name, begun = begun
        for place, (alone, is_given_equal) in enumerate(begun):
            same = self.same(outputs, alone, place)
            is_float = any(
                x.is_floating_point() or x.is_complex()
                for x, is_same in zip(outputs, same, strict=False)
                if is_same is False
            )
            parted = self.parted.get((place, *key[:2]))
            if is_float and key[2] != END and is_given_equal:
                self.first.setdefault(place, (key, name))
            elif is_float and key[2] == END and parted:
                self.first.setdefault(place, (key, parted))
            if all(same):
                result = "equal"
            elif False in same and place in self.first:
                result = "differs"
            else:
                result = "not compared"
            self.results.append((key, name, result))

    def same(self, tensors: list, alone: list, place: int) -> list[bool | None]:
        """Returns whether each tensor has a sample's bits alone, or None if nothing tells."""
        if len(tensors) != len(alone):
            return [None]
        found = []
        for x, (shape, dtype, digested) in zip(tensors, alone, strict=True):
            candidates = [] if digested is None else rows(x, shape, place, len(self.records))
            is_same = any(digest(each) == digested for each in candidates)
            found.append(is_same if candidates and x.dtype == dtype else None)
        return found
