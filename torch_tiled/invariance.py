"""invariance(): does a model give a sample the same bits alone and in a batch? If not, where?"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from ._internals import tree_leaves, tree_map
from ._invariant_table import advice as advice_of_function
from ._watch import Alone, Grab, Key, Together, Watch, bits, relative, rows, tensors_in

__all__ = ["Compared", "Difference", "Invariance", "invariance"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """What was found of the outputs of a module.

    Attributes:
        name: as in model.named_modules(); "" is the model itself.
        kind: the name of its class.
        result: "equal": in all batches they had the bits of the samples alone; "differs"; or "not
            compared": an output is no dense tensor, its shape does not tell which rows are a
            sample's, or the rows that it tells have other bits, though no operator before made any.
        batch: the first batch in which they were not equal, or "".

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten())
        >>> torch_tiled.invariance(model, torch.randn(4, 2, 3)).modules[1]
        Compared(name='0', kind='Flatten', result='equal', batch='')
    """

    name: str
    kind: str
    result: str
    batch: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first operator found that had a sample's inputs of equal bits, and outputs of others.

    Attributes:
        module: the name of the innermost module that called it; "" is the model itself.
        kind: the name of the module's class, or of the function.
        operator: its name, such as "aten.native_layer_norm". If a module's outputs differ while
            the rows of its operators were not found, several names, as in "one of aten.histc,
            aten._grouped_mm" or "aten.addmm alone, aten.mm in the batch"; or "" if it has none.
        sample: the sample's index in the inputs.
        batch: the batch, such as "a batch of 3".
        relative: the largest difference of an element of its output (with several names or none,
            of the module's), divided by the largest element of the sample alone.
        advice: a sentence on what to do.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
        >>> first = torch_tiled.invariance(model, torch.randn(4, 3, 5)).first
        >>> first.module, first.operator
        ('0', 'aten.native_batch_norm')
        >>> first.advice
        "In training it computes the batch's statistics: call eval()."
    """

    module: str
    kind: str
    operator: str
    sample: int
    batch: str
    relative: float
    advice: str


@dataclasses.dataclass(frozen=True)
class Invariance:
    """What torch_tiled.invariance() found. str() makes a table of it, and bool() is `equal`.

    Attributes:
        equal: whether all outputs had the same bits in all batches.
        samples: how many samples there were.
        batches: the batches that were compared with the samples alone, as in "a batch of 3".
        different: those of them with an output of other bits.
        first: a Difference, or None if no operator was found.
        modules: a Compared for each module that was called, in the order of named_modules().
        not_compared: operators with a floating-point output that was not compared, as
            Compared.result tells, in the order of their calls: "aten.mm in layers.0 (Mixer)"; and
            types of outputs that are no tensors: "an output of type float".

    Examples:
        >>> layer = torch_tiled.nn.Linear(64, 8, algorithm="tiled")
        >>> report = torch_tiled.invariance(layer, torch.randn(4, 64))
        >>> report.equal, report.first
        (True, None)
        >>> report.batches[1:]
        ('a batch of 2', 'a batch of 3', 'a batch of 4', 'a batch of 4, reversed')
    """

    equal: bool
    samples: int
    batches: tuple[str, ...]
    different: tuple[str, ...]
    first: Difference | None
    modules: tuple[Compared, ...]
    not_compared: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        outputs = f"The outputs of {self.samples} samples"
        lines = [f"{outputs} alone differ from those in: {'; '.join(self.different)}."]
        if self.equal:
            tried = "; ".join(self.batches[1:])
            lines = [
                f"{outputs} have the same bits alone and in batches.",
                f"Compared with: {tried}",
            ]
        elif self.different[0] == _AGAIN:
            lines.insert(0, _NOT_DETERMINISTIC)
        if first := self.first:
            where = _named(first.module, first.kind)
            where = f"{first.operator} in {where}" if first.operator else where
            by = f"by {first.relative:.1e} of the largest element"
            if first.relative == torch.inf:
                by = "from zeros"
            elif first.relative == 0:
                by = "in the sign of a zero or the bits of a NaN"
            begin = "Inside, and not in the outputs, the first" if self.equal else "First"
            lines += [
                f"{begin} to differ: {where}, sample {first.sample} in {first.batch}, {by}",
                first.advice,
            ]
        elif not self.equal:
            lines.append("No operator was found that differs while its inputs are equal.")
        if self.not_compared:
            shown = ", ".join(self.not_compared[:3])
            more = f" and {len(self.not_compared) - 3} more" if self.not_compared[3:] else ""
            lines.append(f"Not compared: {shown}{more}")
        cells = [
            (row.name or "(the model)", row.kind, f"{row.result}: {row.batch}".removesuffix(": "))
            for row in self.modules
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        return "\n".join(lines)


def _named(name: str, kind: str) -> str:
    return f"{name} ({kind})" if name else f"the model ({kind})"


# --- What to do about an operator ----------------------------------------------------------------

_INVARIANT = "run the model in torch_tiled.invariant()"
_PRODUCT = f"A kernel is picked by the number of rows: {_INVARIANT}"
_BY_DEFINITION = "A reduction over the batch depends on it by definition."
_REDUCTION = (
    f"{_BY_DEFINITION} Another one may be split by the number of rows: {_INVARIANT}, or write it "
    f"by functions of torch_tiled.nn.functional."
)
_DROPOUT = "It draws random numbers, which depend on the shape of the batch: call eval()."
_OTHER = "Compute it for one sample at a time, or by operators of one fixed order."
_MODULE = "It moves or rounds rows of the batch: see which rows and numbers reach a sample's."
_AGAIN = "sample 0 alone, again"
_NOT_DETERMINISTIC = (
    "Sample 0 alone differs from itself: the model keeps state, draws random numbers that are not "
    "PyTorch's, or adds in no fixed order."
)
_RNN = "Its products are inside of one operator: write the cell with torch_tiled.nn.Linear."
_CONVOLUTION = f"An algorithm is picked by the shape: {_INVARIANT}."
_ATOMICS = "On a GPU atomics may add in any order: call torch.use_deterministic_algorithms(True)."
_ELEMENTWISE = (
    "On a CPU it may round elements in whole SIMD registers and those left over in different ways: "
    "make a sample's size a multiple of 32."
)
# By the operator's name, without an underscore at its end: what to do on a GPU, and on a CPU.
_ADVICE = {
    "mm addmm bmm baddbmm mv addmv dot linear matmul addbmm einsum _grouped_mm": (
        f"{_PRODUCT}, or use torch_tiled.convert(model) or torch_tiled.override().",
        f'{_PRODUCT}, or name an algorithm of torch_tiled, whose "auto" is PyTorch on a CPU.',
    ),
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_attention_math _flash_attention_forward _efficient_attention_forward "
    "scaled_dot_product_attention": (
        f"The keys may be split by the number of rows: {_INVARIANT}, or use "
        f"torch_tiled.nn.functional.scaled_dot_product_attention.",
    ),
    "native_layer_norm native_group_norm _fused_rms_norm rms_norm _softmax _safe_softmax "
    "_log_softmax sum mean var var_mean std std_mean linalg_vector_norm norm logsumexp cumsum "
    "nll_loss_forward": (_REDUCTION,),
    "max min amax amin": (_BY_DEFINITION,),
    "native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm "
    "miopen_batch_norm": ("In training it computes the batch's statistics: call eval().",),
    "native_dropout bernoulli dropout rand rand_like randn randn_like uniform normal": (_DROPOUT,),
    "convolution _convolution cudnn_convolution mkldnn_convolution conv1d conv2d conv3d": (
        _CONVOLUTION,
    ),
    "_cudnn_rnn mkldnn_rnn_layer lstm gru rnn_tanh rnn_relu _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell": (_RNN,),
    "index_add scatter_add scatter_reduce index_put _index_put_impl _embedding_bag "
    "_embedding_bag_forward_only": (_ATOMICS,),
    "silu gelu sigmoid tanh exp expm1 log log1p erf rsqrt sqrt pow sin cos mish softplus": (
        _OTHER,
        _ELEMENTWISE,
    ),
    "_transformer_encoder_layer_fwd _native_multi_head_attention": (
        f"It is PyTorch's fast path for a whole layer: {_INVARIANT}, which does not take it.",
    ),
}


def _advice(operators: str, on_cpu: bool) -> str:
    """Returns what to do about the first operator in a text of which something is known."""
    if operators == "":
        return _MODULE
    for operator in operators.replace(",", "").split():
        namespace, _, name = operator.partition(".")
        if namespace == "tiled" and name.startswith("_row_"):
            return _BY_DEFINITION
        if namespace == "tiled":
            return f'On a CPU "auto" is PyTorch: {_INVARIANT}, or name an algorithm.'
        for names, sentences in _ADVICE.items():
            if namespace == "aten" and name.removesuffix("_") in names.split():
                return sentences[-1 if on_cpu else 0]
    return _OTHER


def _advice_of_layer(layer: torch.nn.Module | None) -> str | None:
    """Returns what to do about a layer of torch.nn that torch_tiled.invariant does not cover."""
    if not type(layer).__module__.startswith("torch.nn.modules."):
        return None
    # ConvTranspose1d is conv_transpose1d, and GRUCell gru_cell.
    words = re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(layer).__name__)
    what = advice_of_function({"RNN": "rnn_tanh"}.get(words, words.lower()))
    return what and f"{what[0].upper()}{what[1:]}, in torch_tiled.invariant()."


# --- The runs ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module | None) -> Iterator[None]:
    """Gives a module its buffers back, and PyTorch its random numbers."""
    modules = module.modules() if module is not None else ()
    # Those of a torch.jit.ScriptModule are no dict, and it puts no other tensors in their places.
    places = [each._buffers for each in modules if isinstance(each._buffers, dict)]
    saved = [(place, dict(place)) for place in places]
    copies = {x: x.clone() for x in module.buffers()} if module is not None else {}
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        for place, buffers in saved:
            place.clear()
            place.update(buffers)
        for x, copied in copies.items():
            if x.shape != copied.shape:
                x.resize_(copied.shape)
            if not _same_bits(x, copied):
                x.copy_(copied)


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    x_bits, y_bits = bits(x), bits(y)
    return x_bits is not None and y_bits is not None and torch.equal(x_bits, y_bits)


class _Runs:
    """A model and its inputs, to be run with any of the samples."""

    def __init__(self, model: Callable, inputs: Any, shared: Mapping | None, dim: int) -> None:
        if not callable(model):
            raise _error(f"model is of type {type(model).__name__}; pass a module or a function")
        if isinstance(inputs, Mapping):
            self.args, self.kwargs = (), dict(inputs)
        else:
            self.args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
            self.kwargs = {}
        if shared is not None and not isinstance(shared, Mapping):
            raise _error(
                f"shared is of type {type(shared).__name__}; pass a mapping of keyword arguments"
            )
        if both := sorted(map(str, {*self.kwargs} & {*(shared or {})})):
            raise _error(f"inputs and shared both have {both[0]}; leave it out of one of them")
        self.model, self.shared, self.dim = model, dict(shared or {}), dim
        self.ignored = {}  # types of outputs that are not compared
        owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
        self.module = owner if isinstance(owner, torch.nn.Module) else None
        modules = list(self.module.named_modules()) if self.module is not None else []
        self.names = {module: name for name, module in modules}
        self.kinds = {name: type(module).__name__ for name, module in modules}
        parameters = list(self.module.parameters()) if self.module is not None else []
        if any(isinstance(x, UninitializedParameter) for x in parameters):
            raise _error("the model has parameters without data; run it once first")
        strided = [x for x in parameters if x.layout is torch.strided and bits(x) is not None]
        self.parameters = {x.untyped_storage().data_ptr() for x in strided}
        lengths = [x.shape[dim] for x in tensors_in((self.args, self.kwargs)) if x.dim() > dim]
        if not lengths:
            raise _error(
                f"inputs, of type {type(inputs).__name__}, has no tensor with a dimension {dim}; "
                f"pass a batch of samples"
            )
        self.samples = lengths[0]
        if self.samples < 2:
            raise _error(
                f"dimension {dim} of the first tensor of inputs is {self.samples}; pass a batch of "
                f"2 samples or more, and what is no batch by shared"
            )

    def kind(self, name: str) -> str:
        if self.module is not None:
            return self.kinds[name]
        return getattr(self.model, "__name__", type(self.model).__name__)

    def run(
        self, samples: list[int], batch: str, watch: Watch | None = None
    ) -> dict[str, torch.Tensor]:
        """Returns the outputs of a batch of some of the samples, by their places in the result."""

        def take(x):
            if not isinstance(x, torch.Tensor):
                return x
            if x.dim() <= self.dim or x.shape[self.dim] != self.samples:
                return x.clone()
            index = torch.tensor(samples, device=x.device)
            part = x.narrow(self.dim, 0, len(samples)).clone()  # keeps channels_last
            return part.copy_(x.index_select(self.dim, index))

        args, kwargs = tree_map(take, (self.args, self.kwargs))
        shared = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, self.shared)
        try:
            with _unchanged(self.module), watch or contextlib.nullcontext():
                if watch is not None:
                    watch.enter((args, kwargs, shared))
                result = self.model(*args, **kwargs, **shared)
                if watch is not None:
                    watch.leave(result)
        except Exception as error:
            note = (
                f"torch_tiled.invariance ran the model with {batch}: tensors of inputs with "
                f"{self.samples} in dimension {self.dim} were cut, and all else was passed whole; "
                f"pass by shared what is not to be cut"
            )
            if len(samples) == 1 and any(module.training for module in self.names):
                note += ". Some layers in training, such as BatchNorm, take no sample alone: "
                note += "call eval()"
            error.add_note(note)
            raise
        outputs = dict(_outputs(result, "", self.ignored))
        if not outputs:
            raise _error(
                f"the model returned a {type(result).__name__} without tensors; pass a function "
                f"that returns the tensors to compare"
            )
        return outputs

    def difference(
        self, key: Key, name: str, numbers: tuple, batch: str, samples: list[int], place: int
    ) -> Difference:
        """Runs a sample alone and in a batch again, and compares the outputs of one call."""
        alone, together = self.watched(Grab, key=key), self.watched(Grab, key=key)
        self.run([samples[place]], f"sample {samples[place]} alone", alone)
        self.run(samples, batch, together)
        by = 0.0
        for a, x in zip(alone.outputs, together.outputs, strict=False):
            by = max(
                by,
                min((relative(a, y) for y in rows(x, a.shape, place, len(samples))), default=0.0),
            )
        layer = None if self.module is None else self.module.get_submodule(key.module)
        on_cpu = all(x.is_cpu for x in alone.outputs)
        advice = _advice_of_layer(layer) or _advice(name, on_cpu)
        if numbers is not None:
            pairs = itertools.zip_longest(*numbers)
            a, x = next(pair for pair in pairs if repr(pair[0]) != repr(pair[1]))
            advice = f"It was called with the number {x}, and for the sample alone with {a}."
        kind = self.kind(key.module)
        return Difference(key.module, kind, name, samples[place], batch, by, advice)

    def watched(self, kind: type, **options: Any) -> Watch:
        return kind(self.names, self.parameters, **options)


def _error(sentence: str) -> RuntimeError:
    return RuntimeError(f"torch_tiled.invariance: {sentence}")


def _outputs(tree: Any, path: str, ignored: dict) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a result and their places in it. `ignored` gets types of others."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif type(tree).__module__ == "numpy" and hasattr(tree, "dtype"):
        yield path, torch.as_tensor(tree)
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _outputs(value, f"{path}[{key!r}]", ignored)
    elif isinstance(tree, (tuple, list)):
        for i, value in enumerate(tree):
            yield from _outputs(value, f"{path}[{i}]", ignored)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from _outputs(getattr(tree, field.name), f"{path}.{field.name}", ignored)
    elif (leaves := tree_leaves(tree)) and leaves[0] is not tree:
        yield from _outputs(leaves, path, ignored)
    elif tree is not None and not isinstance(tree, str):
        ignored[f"an output of type {type(tree).__name__}"] = None


def _told(x: torch.Tensor) -> str:
    layout = "nested" if x.is_nested else f"{tuple(x.shape)} of {x.dtype}"
    if x.is_meta or x.is_quantized:
        return f"{layout}, without plain numbers"
    return layout if x.layout is torch.strided else f"{layout} and {x.layout}"


def _check_outputs(alone: dict, outputs: dict, place: int, batch: str, size: int) -> bool:
    """Returns whether the outputs have a sample's bits alone."""
    if len(alone) != len(outputs):
        raise _error(
            f"the model returned {len(alone)} tensors for a sample alone and {len(outputs)} for "
            f"{batch}; pass a function that returns the same number"
        )
    if other := sorted(alone.keys() ^ outputs.keys()):
        raise _error(
            f"the output {other[0]} is one of a sample alone or of {batch}, and not of both; pass "
            f"a function that returns the same"
        )
    equal = True
    for path, a in alone.items():
        x = outputs[path]
        found = [] if a.is_nested else rows(x, a.shape, place, size)
        if not found or bits(a) is None or a.dtype != x.dtype:
            raise _error(
                f"output {path or 0} is {_told(x)} for {batch} and {_told(a)} for a sample alone, "
                f"so a sample's rows are not found; pass a function that returns dense tensors "
                f"with a dimension of the batch"
            )
        equal = equal and any(_same_bits(a, each) for each in found)
    return equal


def _batches(samples: int, sizes: Iterable[int] | None) -> Iterator[tuple[str, list[int]]]:
    """Yields the name and the samples of each batch."""
    if sizes is not None and not isinstance(sizes, Iterable):
        raise _error(f"sizes is {sizes!r}; pass a list of sizes, such as [{sizes!r}]")
    sizes = {size for size in (2, 3, samples) if size <= samples} if sizes is None else set(sizes)
    for size in sizes:
        if not isinstance(size, int) or not 2 <= size <= samples:
            raise _error(f"sizes has {size}; pass sizes from 2 to {samples}, the inputs' samples")
    yield _AGAIN, [0]
    for size in sorted(sizes):
        starts = {*range(0, samples - size + 1, size), samples - size}
        for start in sorted(starts):
            yield f"a batch of {size}", list(range(start, start + size))
    yield f"a batch of {samples}, reversed", list(range(samples))[::-1]


@torch.no_grad()
def invariance(
    model: Callable,
    inputs: Any,
    *,
    shared: Mapping[str, Any] | None = None,
    sizes: Iterable[int] | None = None,
    dim: int = 0,
) -> Invariance:
    """Tells whether a model gives a sample the same bits alone and in a batch, and if not, where.

    The model computes every sample of a batch alone, sample 0 once more, batches of several
    consecutive samples, and the whole batch in reversed order. Every output is compared bit by bit
    with the sample's alone; NaNs are equal if their bits are. Digests of 64 bits compare the
    outputs of every module and the inputs and outputs of every operator that computes: the first
    operator with equal inputs and different outputs is the one to replace.

    The rows of a sample are found by shapes: one dimension is as many times as long as the batch
    has samples, and a sample's rows in it are contiguous or have that stride. A tensor of the same
    shape alone and in a batch is compared as a whole. Operators with other outputs are not
    compared, and the report names them.

    Batches that pass prove nothing about others: call it on the device, with the dtype and the
    sizes that serve. Padding is a part of the inputs, which a sample has alone, too; it may itself
    change bits, so pass a batch that is padded as yours are.

    The model runs without gradients, and in its own training mode: call eval() first, unless that
    is the question. Its buffers, the random numbers of PyTorch (every run begins with the caller's)
    and the inputs are as before afterwards; other state that a forward changes, such as parameters
    or a cache in Python, is not given back.

    The outputs are compared as the model computes them by itself. It then runs again to be
    watched, where torch.compile leaves a model to its eager operators, so a difference that only a
    compiled model has is reported without an operator. Digests of all activations are computed in
    each of these runs, which takes memory for a copy of the largest. The outputs of all samples
    are kept.

    Args:
        model: a module, a method of one (model.generate), or any function, which is
            compared without modules.
        inputs: a tensor; a tuple or list of the model's arguments; or a mapping of its keyword
            arguments, as for model(**inputs). The size of the batch is the first tensor's in
            dimension dim. Every tensor that has this size there is cut, also in nested tuples,
            lists and dicts; other values are passed whole.
        shared: keyword arguments that are passed whole, whatever their sizes.
        sizes: the sizes of the batches, each from 2 to that of the inputs; 2, 3 and all by default.
        dim: the dimension of the batch in the inputs.

    Returns:
        An Invariance: print it.

    Raises:
        RuntimeError: there is no batch of two samples or more; a size is not possible; the model
            returns no tensor, or one in which a sample's rows are not found. An exception of the
            model itself passes through, with a note that names the batch.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout())
        >>> print(torch_tiled.invariance(model.eval(), torch.randn(2, 64)))
        The outputs of 2 samples have the same bits alone and in batches.
        Compared with: a batch of 2; a batch of 2, reversed
        (the model)  Sequential  equal
        0            ReLU        equal
        1            Dropout     equal
    """
    runs = _Runs(model, inputs, shared, dim)
    batches = list(_batches(runs.samples, sizes))
    records, alone = [], []
    for i in range(runs.samples):
        watch = runs.watched(Alone)
        alone.append(runs.run([i], f"sample {i} alone"))
        runs.run([i], f"sample {i} alone", watch)
        records.append(watch.record)
    faults, suspected, different, results, not_compared = [], [], {}, {}, {}
    for batch, samples in batches:
        outputs = runs.run(samples, batch)
        watch = runs.watched(Together, records=[records[i] for i in samples])
        runs.run(samples, batch, watch)
        places = {
            place
            for place, i in enumerate(samples)
            if not _check_outputs(alone[i], outputs, place, batch, len(samples))
        }
        if places:
            different[batch] = None
        for into, these in ((faults, watch.faults), (suspected, watch.suspected)):
            for place, (_, *found) in these.items():
                call = list(records[samples[place]]).index(found[0])
                into.append((call, *found, batch, samples, place))
        for key, result in watch.results(places):
            if not key.operator:
                results.setdefault(key.module, {}).setdefault(result, batch)
            elif result == "not compared":
                not_compared[f"{key.operator} in {_named(key.module, runs.kind(key.module))}"] = (
                    None
                )
    found = faults or (suspected if different else [])
    first = runs.difference(*min(found, key=lambda each: each[0])[1:]) if found else None
    # The model itself was also compared without being watched.
    results[""] = {"differs": next(iter(different))} if different else {"equal": ""}
    modules = []
    for name in runs.names.values() or [""]:
        of_module = results.get(name, {})
        worst = next((x for x in ("differs", "not compared", "equal") if x in of_module), None)
        if worst is not None:
            batch = "" if worst == "equal" else of_module[worst]
            modules.append(Compared(name, runs.kind(name), worst, batch))
    return Invariance(
        equal=not different,
        samples=runs.samples,
        batches=tuple(dict.fromkeys(batch for batch, _ in batches)),
        different=tuple(different),
        first=first,
        modules=tuple(modules),
        not_compared=(*not_compared, *runs.ignored),
    )
