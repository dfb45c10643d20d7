"""gemm_ and out= in compiled functions, where Inductor may drop a clone."""

import pytest
import torch
from torch.testing import assert_close

import torch_tiled

# Operands that are clones of what is written, or the other way round.
CLONED = {
    "gemm_, of a clone": lambda c, b: torch_tiled.gemm_(c, c.clone(), b),
    "gemm_, into a clone": lambda c, b: torch_tiled.gemm_((2 * c).clone(), 2 * c, b),
    "out=, of a clone": lambda c, b: torch_tiled.matmul(c.clone(), b, out=c),
}


def operands():
    return torch.randn(8, 8), torch.randn(8, 8)


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()


@pytest.mark.parametrize("name", CLONED)
def test_a_clone_that_is_dropped_is_refused_and_never_wrong(name):
    """Inductor drops the clone of `gemm_(c, c.clone(), b)`, which ran before it was compiled."""
    write = CLONED[name]
    c, b = operands()
    expected = write(c.clone(), b)
    try:
        result = torch.compile(write, fullgraph=True)(c.clone(), b)
    except RuntimeError as error:
        assert "shares memory with a; pass a.clone()" in str(error)
    else:
        assert_close(result, expected)


def test_a_product_that_is_added_in_place_needs_no_clone():
    """It is what docs/guide/compile.md advises for `gemm_(c, c.clone(), b)`."""
    c, b = operands()
    compiled = torch.compile(lambda c, b: c.add_(torch_tiled.matmul(c, b)), fullgraph=True)
    assert_close(compiled(c.clone(), b), c + c @ b)


def test_functionalize_takes_no_product_that_writes():
    """torch.func.functionalize refuses operators outside of ATen that write to an argument."""
    c, b = operands()
    for write in (
        lambda c, b: torch_tiled.gemm_(c, b, b),
        lambda c, b: torch_tiled.matmul(b, b, out=c),
    ):
        with pytest.raises(RuntimeError, match="custom .* operator whose output has alias"):
            torch.func.functionalize(write)(c.clone(), b)
    for product in (torch_tiled.matmul, torch_tiled.linear):
        assert_close(torch.func.functionalize(product)(c, b), product(c, b))
