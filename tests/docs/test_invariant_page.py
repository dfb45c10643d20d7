"""The page on PyTorch's functions in torch_tiled.invariant is what its tool writes."""

from tools.invariant_page import PAGE, page


def test_the_page_is_what_the_tool_writes():
    assert PAGE.read_text() == page(), "run python -m tools.invariant_page"
