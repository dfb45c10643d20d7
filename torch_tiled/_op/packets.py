"""torch.ops.tiled.matmul, linear and gemm_ as Python calls them: past the kernels in Python.

The kernels at the keys Autograd and ADInplaceOrView are Python, since PyTorch's stable ABI has
neither a function that asks if a tensor requires grad nor one that calls an operator below a key.
So a call from Python asks first, and leaves these kernels out if they would do nothing. Calls from
elsewhere, and of an overload such as torch.ops.tiled.matmul.default, begin at the highest key.
"""

from .._internals import OpOverloadPacket
from .call import call, entry_points
from .derivatives import plain_linear, plain_matmul
from .fast_path import is_plain
from .inplace import is_plain_gemm, is_plain_write, plain_gemm_, plain_matmul_out
from .namespace import operators

_matmul = entry_points(operators.matmul)
_linear = entry_points(operators.linear)
_gemm = entry_points(operators.gemm_)


class _Matmul(OpOverloadPacket):
    def __call__(self, /, *args, **options):
        if len(args) == 2:
            if not options and is_plain(*args):
                return plain_matmul(*args)
            out = options.get("out")
            if len(options) == 1 and out is not None and is_plain_write(out, *args):
                return plain_matmul_out(*args, out)
        return call(_matmul, *args, **options)


class _Linear(OpOverloadPacket):
    def __call__(self, /, *args, **options):
        if len(args) in (2, 3) and not options:
            x, weight, bias = args if len(args) == 3 else (*args, None)
            if is_plain(x, weight) if bias is None else is_plain(x, weight, bias):
                return plain_linear(x, weight, bias)
        return call(_linear, *args, **options)


class _Gemm(OpOverloadPacket):
    def __call__(self, /, *args, **options):
        if len(args) == 3 and options.keys() <= {"alpha", "beta"}:
            factors = options.get("alpha", 1), options.get("beta", 1)
            if is_plain_gemm(*args, *factors):
                return plain_gemm_(*args, *factors)
        return call(_gemm, *args, **options)


def enter():
    """Makes Python's calls of the operators those of the classes above."""
    operators.matmul.__class__ = _Matmul
    operators.linear.__class__ = _Linear
    operators.gemm_.__class__ = _Gemm
