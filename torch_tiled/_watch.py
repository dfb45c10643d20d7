"""Watches a model's modules and operators, and compares a sample's bits alone and in a batch."""

import dataclasses
import functools
from collections import Counter
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from ._internals import (
    TorchDispatchMode,
    WithoutDispatchModes,
    forget_global_hook,
    tree_leaves,
)

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


def described(x: torch.Tensor) -> tuple[torch.Size | None, torch.dtype, list[int] | None]:
    return None if x.is_nested else x.shape, x.dtype, digest(x)


def rows(x: torch.Tensor, shape: torch.Size, place: int, size: int) -> list[torch.Tensor]:
    """Returns what may be the rows of one sample in a tensor of a batch.

    Args:
        x: the batch's tensor.
        shape: that of the sample's tensor alone. A dimension of x is `size` times as long, or none.
        place: the sample's place in the batch.
        size: how many samples the batch has.
    """
    if x.is_nested or shape is None:
        return []
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
    if not difference.any():  # or there is no element
        return 0.0
    return (difference.max() / a.abs().nan_to_num(0, posinf=0).max()).item()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Returns the tensors in tuples, lists, dicts and dataclasses of what a model is given."""
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


@dataclasses.dataclass(frozen=True)
class Key:
    """A call of an operator in a run, or the end of a module's call.

    An operator that is called only alone or only in a batch leaves the keys of others as they are.
    """

    module: str
    call: int  # which call of the module
    operator: str  # "" at the end of the module
    number: int = 0  # which call of the operator in this call of the module


class Watch(TorchDispatchMode):
    """Calls begin() before and end() after every operator of a run, and end() after every module.

    Global hooks tell the modules: hooks of a module's own would keep torch.nn.TransformerEncoder
    from its fast path.
    """

    supports_higher_order_operators = True

    def __init__(self, names: dict[torch.nn.Module, str], parameters: set[int]) -> None:
        super().__init__()
        self.names, self.parameters = names, parameters
        self.calls = Counter()
        # A module, its call, how often it called operators, and what begin_module() returned.
        self.stack = [("", 0, Counter(), None)]

    def __enter__(self):
        self.handles = (
            module_hooks.register_module_forward_pre_hook(self.enter_module),
            module_hooks.register_module_forward_hook(self.leave_module, with_kwargs=True),
        )
        return super().__enter__()

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()
            forget_global_hook(handle)
        return super().__exit__(*error)

    def enter(self, given: Any) -> None:
        """Tells begin() of the model, which need not be a module."""
        self.stack[-1] = *self.stack[-1][:3], self.begin_module(Key("", 0, ""), given)

    def begin_module(self, key, given):
        with WithoutDispatchModes():
            return self.begin(key, tensors_in(given), [])

    def enter_module(self, module, args):
        if module in self.names:
            name = self.names[module]
            self.calls[name] += 1
            begun = self.begin_module(Key(name, self.calls[name], ""), args)
            self.stack.append((name, self.calls[name], Counter(), begun))

    def leave_module(self, module, args, kwargs, result):
        if module in self.names:
            while self.stack[-1][0] != self.names[module]:  # an exception ended it
                self.stack.pop()
            self.leave(result)

    def leave(self, result: Any) -> None:
        """Tells end() of the end of a module, or of the model."""
        name, call, _, begun = self.stack.pop()
        with WithoutDispatchModes():
            self.end(Key(name, call, ""), begun, tensors_in(result))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        arguments = func._schema.arguments if hasattr(func, "_schema") else ()
        outs = {each.name for each in arguments if each.is_out}
        given = tensors_in((args, {k: v for k, v in kwargs.items() if k not in outs}))
        inputs = [x for x in given if not self.is_parameter(x)]
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        name = str(getattr(func, "overloadpacket", func))
        is_move = getattr(func, "is_view", False) or name.rpartition(".")[2] in _MOVES
        if is_move or not (inputs or is_random):
            return func(*args, **kwargs)
        module, call, counts, _ = self.stack[-1]
        key = Key(module, call, name, counts[name])
        counts[name] += 1
        numbers = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
        begun = self.begin(key, [] if is_random else inputs, numbers)
        result = func(*args, **kwargs)
        writes = hasattr(func, "_schema") and func._schema.is_mutable
        self.end(key, begun, tensors_in(result) or (inputs if writes else []))
        return result

    def is_parameter(self, x: torch.Tensor) -> bool:
        strided = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        return strided and x.untyped_storage().data_ptr() in self.parameters

    def begin(self, key: Key, inputs: list[torch.Tensor], numbers: list[float]) -> Any:
        return None

    def end(self, key: Key, begun: Any, outputs: list[torch.Tensor]) -> None:
        return None


class Alone(Watch):
    """Keeps the shapes and digests of a sample alone, by the keys of calls."""

    def __init__(self, *args):
        super().__init__(*args)
        self.record = {}

    def begin(self, key, inputs, numbers):
        return [described(x) for x in inputs], numbers

    def end(self, key, begun, outputs):
        self.record[key] = *begun, [described(x) for x in outputs]


class Grab(Watch):
    """Keeps the outputs of one call."""

    def __init__(self, *args, key: Key):
        super().__init__(*args)
        self.key, self.outputs = key, []

    def end(self, key, begun, outputs):
        if key == self.key:
            self.outputs = [x.clone() for x in outputs]


class Together(Watch):
    """Compares a batch with the records of its samples alone.

    An operator is at fault if a sample's input tensors are equal and a floating-point output is
    not, unless a module around it has equal outputs. Integers do not count: they are often places
    and counts, as in the sorted tokens of a mixture of experts. A module is suspected if its inputs
    are equal and its outputs are not: its rows may only be elsewhere.

    Attributes:
        faults: by place in the batch, the index in `log` of the first call at fault, its key, the
            operator, and the numbers of the sample alone and of the batch, if they differ.
        suspected: the same for modules, with the operators that were not compared.
        log: the place, the key and the result of each call: "equal", "other", "not compared".
    """

    def __init__(self, *args, records: list[dict]):
        super().__init__(*args)
        self.records = records
        self.faults, self.suspected, self.log = {}, {}, []
        self.unknown = {}  # the operators not compared, by place, module and call of it
        self.seen = set()

    def begin(self, key, inputs, numbers):
        """Returns where the log ends; and for each place the outputs alone, whether the inputs are
        equal, and the numbers of both, if they differ."""
        self.seen.add(key)
        places = []
        for place, record in enumerate(self.records):
            if key not in record:
                places.append((None, False, None))
                continue
            alone, numbers_alone, outputs = record[key]
            both = None if repr(numbers) == repr(numbers_alone) else (numbers_alone, numbers)
            places.append((outputs, all(self.same(inputs, alone, place)), both))
        return len(self.log), places

    def end(self, key, begun, outputs):
        start, places = begun
        are_floats = [x.is_floating_point() or x.is_complex() for x in outputs]
        for place, (alone, is_given_equal, numbers) in enumerate(places):
            same = [None] if alone is None else self.same(outputs, alone, place)
            result = "equal" if all(same) else "other" if False in same else "not compared"
            differs = any(
                is_same is False and (is_float or not key.operator)
                for is_float, is_same in zip(are_floats, same, strict=False)
            )
            where = place, key.module, key.call
            if differs and is_given_equal:
                is_operator = key.operator != ""
                name = key.operator if is_operator else self.suspects(where, key)
                into = self.faults if is_operator else self.suspected
                into.setdefault(place, (len(self.log), key, name, numbers))
            if key.operator and result != "equal" and place not in self.faults:
                self.unknown.setdefault(where, {})[key.operator] = None
            if result == "equal" and not key.operator and key.module:
                for found in (self.faults, self.suspected):
                    if place in found and found[place][0] >= start:
                        del found[place]
            if any(are_floats) or result == "equal" or not key.operator:
                self.log.append((place, key, result))

    def results(self, different: set[int]) -> list[tuple[Key, str]]:
        """Returns the key of each call and whether it "differs", is "equal" or "not compared".

        Args:
            different: the places of samples with different outputs of the model.
        """
        suspected = {place: self.suspected.get(place) for place in different}
        faults = {**suspected, **self.faults}
        found = []
        for i, (place, key, result) in enumerate(self.log):
            if result == "other":
                fault = faults.get(place)
                result = "differs" if fault and fault[0] <= i else "not compared"
            found.append((key, result))
        return found

    def suspects(self, where: tuple, end: Key) -> str:
        """Returns the operators of a module that may be at fault for its other outputs."""
        unknown = list(self.unknown.get(where, ()))
        for key in self.records[where[0]]:
            of_module = key.operator and (key.module, key.call) == (end.module, end.call)
            if of_module and unknown and key not in self.seen:
                return f"{key.operator} alone, {unknown[0]} in the batch"
        return f"one of {', '.join(unknown)}" if len(unknown) > 1 else "".join(unknown)

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
