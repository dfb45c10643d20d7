"""Strided views of operands, and the number of graphs that torch.compile makes."""

import torch
from torch.testing import assert_close

BACKENDS = ["aot_eager", "inductor"]


VIEWS = {
    "plain": lambda *shape, **kw: torch.randn(*shape, **kw),
    "transposed": lambda *shape, **kw: torch.randn(*shape[:-2], *shape[:-3:-1], **kw).mT,
    "strided": lambda *shape, **kw: torch.randn(*shape[:-1], 2 * shape[-1], **kw)[..., ::2],
    "offset": lambda *shape, **kw: torch.randn(*shape[:-1], shape[-1] + 1, **kw)[..., 1:],
    "expanded": lambda *shape, **kw: torch.randn(*shape[:-2], 1, shape[-1], **kw).expand(shape),
}


def count_compilations(f, inputs):
    """Returns how many graphs are compiled for these inputs with dynamic shapes."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for args in inputs:
        assert_close(compiled(*args), f(*args))
    return counter.frame_count
