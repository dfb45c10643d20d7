"""Every private name of PyTorch that this package uses.

PyTorch has no public interface yet for an operator that takes part in all of its transforms. The
names that this takes are gathered here, so that a new release of PyTorch is checked by reading one
file; tests/pytorch/test_internals.py checks that each name exists and does what is expected of it.
"""

import functools
import itertools
import sys
import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import _grouped_mm as torch_grouped_mm
from torch import _neg_view as negative_view
from torch._C import (
    DisableTorchFunction as WithoutFunctionModes,
)
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
    _DisableTorchDispatch as WithoutDispatchModes,
)
from torch._C import (
    _dispatch_has_kernel_for_dispatch_key as has_kernel,
)
from torch._C import (
    _dispatch_keyset_full_after as keys_after,
)
from torch._C import (
    _ExcludeDispatchKeyGuard as ExcludeKeys,
)
from torch._C import (
    _is_any_autocast_enabled as autocast_active,
)
from torch._C import (
    _is_tracing as is_jit_tracing,
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
from torch._C._functorch import get_unwrapped
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
from torch._functorch.autograd_function import custom_function_call_vmap_helper as apply_vmap_rule
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter as current_interpreter,
)
from torch._functorch.utils import (
    enable_single_level_autograd_function as allow_single_level_function,
)
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled as set_forward_ad_enabled
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules import module as module_hooks
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import GetAttrKey, register_pytree_node, tree_leaves, tree_map

__all__ = [
    "AFTER_AUTOGRAD",
    "AFTER_INPLACE",
    "BelowAutograd",
    "DispatchKey",
    "DispatchKeySet",
    "ExcludeKeys",
    "FunctionalTensor",
    "FunctionalTensorMode",
    "GetAttrKey",
    "InductorCandidates",
    "OpOverload",
    "OpOverloadPacket",
    "SingleLevelFunction",
    "TorchDispatchMode",
    "WithoutDispatchModes",
    "WithoutFunctionModes",
    "allow_single_level_function",
    "apply_vmap_rule",
    "argument_names",
    "assume_constant_result",
    "attention_by",
    "autocast_active",
    "call_without_python",
    "current_interpreter",
    "dispatch_modes",
    "distinguish_by_options",
    "forget_global_hook",
    "forward_ad_active",
    "function_modes",
    "gradients_asked_for",
    "has_kernel",
    "has_tangent",
    "in_modes",
    "insert_function_mode",
    "is_in_fsdp_shards",
    "is_jit_tracing",
    "is_wrapped",
    "keys_after",
    "may_be_in_a_graph",
    "negative_view",
    "primal_of",
    "redispatch_without_python",
    "register_pytree_node",
    "remove_function_mode",
    "set_forward_ad_enabled",
    "torch_grouped_mm",
    "transforms_active",
    "tree_leaves",
    "tree_map",
    "unwrapped",
    "version_of",
]


class SingleLevelFunction(_SingleLevelFunction):
    """An autograd Function that differentiates one level of the stack of transforms.

    PyTorch makes one for each level of a torch.autograd.Function. Applied directly, by a kernel at
    the Autograd key, it needs no other level: its forward redispatches to the next one.
    """

    _compiled_autograd_key = torch.autograd.Function._compiled_autograd_key

    @staticmethod
    def forward(below, options, *tensors):
        """Computes an operator by `below`, a function that does so one level down.

        options, those of the operator, are for setup_context.
        """
        return below(*tensors)


def forward_ad_active():
    """Returns whether Python has entered a level of forward AD.

    A graph of Dynamo or torch.export enters a level without telling Python: see has_tangent().
    """
    return forward_ad._current_level >= 0


def has_tangent(tensor):
    """Returns whether a dense tensor carries a forward-mode tangent, whoever entered the level."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return forward_ad.unpack_dual(tensor, level=0).tangent is not None


def primal_of(tensor):
    """The tensor (or None) without its forward-mode tangent at this level of transforms."""
    return None if tensor is None else forward_ad.unpack_dual(tensor, level=0).primal


def may_be_in_a_graph():
    """Returns whether a graph of Dynamo or torch.export may be running."""
    return "torch._dynamo" in sys.modules


def unwrapped(tensor):
    """The tensor inside of those of torch.func's transforms: under torch.vmap, of all examples."""
    while is_wrapped(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def gradients_asked_for(ctx, needed):
    """Returns which of a Function's gradients this backward pass asks for.

    torch.autograd.grad(y, x) asks for no gradients of weights, but ctx.needs_input_grad is true for
    all tensors that require grad.

    Args:
        ctx: the context of a backward that is running.
        needed: the bools of ctx.needs_input_grad for the tensors that the Function was applied to,
            in order, without those that are None. The last ones may be left out.
    """
    if sum(needed) < 2:  # a backward runs only if one is asked for
        return needed
    edges = ctx.next_functions
    return [need and _is_asked_for(edges[i][0]) for i, need in enumerate(needed)]


def _is_asked_for(node):
    try:
        return will_run(node)
    except RuntimeError:  # the node of a leaf with a gradient that is returned, not accumulated
        return True


def call_without_python(overload):
    """The callable inside an OpOverload, which makes the same call with one Python frame less."""
    return overload._op


def redispatch_without_python(overload):
    """OpOverload.redispatch with one Python frame less."""
    return overload._handle.redispatch_boxed


def assume_constant_result(function):
    """torch.compiler.assume_constant_result, which would import torch._dynamo."""
    function._dynamo_marked_constant = True
    return function


def attention_by(linear: Callable, attention: Callable) -> Callable:
    """torch.nn.functional.multi_head_attention_forward by another linear and another attention.

    PyTorch's function calls F.linear as a global, and in a TorchFunctionMode it is handed to the
    mode as a whole. So this is the same code with other globals. They have no __name__, by which
    Dynamo would look for them in PyTorch's. Dynamo does not trace into PyTorch's own function, and
    could not trace its check of key_padding_mask.
    """

    def check_key_padding_mask(mask, keys, batch):
        if mask.shape != (batch, keys):
            raise AssertionError(
                f"key_padding_mask is {tuple(mask.shape)}; it must be {(batch, keys)}"
            )

    scope = {name: value for name, value in vars(F).items() if name != "__name__"}
    scope |= {
        "linear": linear,
        "scaled_dot_product_attention": attention,
        "has_torch_function": lambda tensors: False,
        "_check_key_padding_mask": check_key_padding_mask,
    }
    for name in ("_in_projection_packed", "_in_projection", "multi_head_attention_forward"):
        function = scope[name]
        scope[name] = types.FunctionType(function.__code__, scope, name, function.__defaults__)
    return scope[name]


def in_modes(function: Callable) -> Callable:
    """The same function, whose calls reach the TorchFunctionMode that it is handed to as a whole.

    Functions of PyTorch's Python code ask has_torch_function*() first, which is true in a mode.
    """
    scope = {name: value for name, value in function.__globals__.items() if name != "__name__"}
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        scope[name] = lambda *tensors: False
    same = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    same.__kwdefaults__ = function.__kwdefaults__
    return same


def insert_function_mode(mode, outer):
    """Puts a TorchFunctionMode inside of this thread's modes in `outer`, and outside of others.

    torch.set_default_device and a with statement of a torch.device expect a DeviceContext to be the
    outermost mode.
    """
    from torch.utils._device import DeviceContext  # import torch alone does not import it

    stack = [_pop_mode() for _ in range(function_modes())]
    first = [each for each in stack if isinstance(each, DeviceContext) or each in outer]
    for each in (*reversed(first), mode, *(x for x in reversed(stack) if x not in first)):
        _push_mode(each)


def remove_function_mode(mode):
    """Takes a TorchFunctionMode out of this thread's, wherever it is."""
    stack = [_pop_mode() for _ in range(function_modes())]
    for each in reversed(stack):
        if each is not mode:
            _push_mode(each)


def argument_names(overload):
    """The names of the arguments that may be positional."""
    return [x.name for x in overload._schema.arguments if not x.kwarg_only]


def distinguish_by_options(overload, *options, first=100):
    """Makes DTensor's cache of sharding decisions distinguish calls by these keyword options, and
    by positional arguments from the place `first` on.

    torch.distributed.tensor.experimental.register_sharding distinguishes them by integers only, so
    a call would get the decision that was made for other options.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = DTensor._op_dispatcher.sharding_propagator
    rule = propagator.op_strategy_funcs[overload]
    info = RuntimeSchemaInfo(first, static_kwargkey=list(options), needs_pytree=True)
    propagator.register_op_strategy(overload, rule, info)


def is_in_fsdp_shards(module):
    """Returns whether fully_shard, applied to the module or one around it, shards its parameters.

    The parameters cannot tell: while they are gathered, in forward, they are plain tensors: their
    memory and version stay the same whatever was written to the shards. But fully_shard registers
    hooks on the module that owns them.
    """
    hooks = module._load_state_dict_post_hooks
    return bool(hooks) and any(
        hook.__module__.startswith("torch.distributed.fsdp.") for hook in hooks.values()
    )


def forget_global_hook(handle):
    """Removes what PyTorch leaves of a global forward hook with keyword arguments when its handle
    is removed, and torch.compile would take for a hook."""
    module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)


def version_of(tensor):
    """The number of writes to a tensor, or None for an inference tensor, which does not count."""
    return None if tensor.is_inference() else tensor._version


class InductorCandidates:
    """Functions that Inductor's autotuning may choose instead of a product of aten.

    Args:
        version: a text in the key of Inductor's cache: other candidates need another version.
        functions: the functions by their names in Inductor's code. Each takes the tensors of aten's
            mm, bmm or addmm, and returns the product, contiguous.
        candidate: candidate(op, dtypes, strides, scalars) returns the function that computes
            aten::op of such operands, or None.
    """

    def __init__(self, version, functions, candidate):
        self._version = version
        self._functions = functions
        self._candidate = candidate
        self._keys = itertools.count()  # one for each time that the choices change

    def enable(self, factory):
        """Makes Inductor call factory, a module's function that returns choices()."""
        from torch._inductor import config

        other = config.inductor_choices_class
        if other not in (None, factory):
            raise RuntimeError(
                f"torch_tiled.inductor.enable: torch._inductor.config.inductor_choices_class is "
                f"{other} already, and Inductor takes only one; set it to None first if you can do "
                f"without those choices"
            )
        config.inductor_choices_class = factory
        self._register()  # code from Inductor's cache calls them before choices() is
        self._make_choices_anew()

    def disable(self, factory):
        from torch._inductor import config

        if config.inductor_choices_class is factory:
            config.inductor_choices_class = None
            self._make_choices_anew()

    def _make_choices_anew(self):
        """Makes every thread construct its InductorChoices again, which it otherwise keeps.

        The backward pass of a model on a GPU is compiled by a thread of autograd.
        """
        from torch._inductor.virtualized import _choices

        _choices._key = f"__torchinductor_choices_{next(self._keys)}"

    @functools.cache  # noqa: B019 (its only object lives as long as the process)
    def _register(self):
        from torch._inductor.select_algorithm import ExternKernelChoice

        return {
            function: ExternKernelChoice(function, name=name, has_out_variant=False)
            for name, function in self._functions.items()
        }

    def choices(self):
        """Returns an InductorChoices that offers these functions beside Inductor's own choices."""
        from torch._inductor import config
        from torch._inductor.choices import InductorChoices
        from torch._inductor.virtualized import V

        kernels, candidate, version = self._register(), self._candidate, self._version

        class Choices(InductorChoices):
            def uuid(self):
                return version

            def get_template_configs(self, kernel_inputs, templates, op_name, *args, **options):
                found = super().get_template_configs(
                    kernel_inputs, templates, op_name, *args, **options
                )
                tunes = config.max_autotune or config.max_autotune_gemm
                # Inductor asks once for each kind of template; aten's own product is one of them.
                if tunes and any(x.uid == f"aten::{op_name}" for x in templates):
                    nodes = kernel_inputs.nodes()
                    strides = [node.get_stride() for node in nodes]
                    scalars = kernel_inputs._scalars
                    function = candidate(op_name, kernel_inputs.dtypes(), strides, scalars)
                    if function is not None and not V.graph.cpp_wrapper:
                        layout = kernel_inputs.output_layout(flexible=False)
                        found.append(kernels[function].bind(nodes, layout))
                return found

        return Choices()
