"""Plans of batches, what is kept, and launches: what a plan says is what a product does."""

import pytest
import torch
from helpers.streaming import check, plan_module, plan_of, sizes_of

import torch_tiled
from torch_tiled.stream import machine
from torch_tiled.stream import order as order_module
from torch_tiled.stream.order import order_of

GIB, MIB = 1 << 30, 1 << 20


def meta(*shape):
    return torch.empty(shape, device="meta")


def plan(a, b, budget):
    return torch_tiled.stream.plan(a, b, max_device_bytes=budget, devices="cpu")


def test_groups_share_an_operand():
    """Its one matrix is loaded once, and has one slot."""
    a, b = torch.randn(7, 20, 30), torch.randn(7, 30, 40)
    for x, y in ((a[:1].expand_as(a), b), (a[0], b), (a.mT.contiguous().mT, b[0])):
        options = {"matrices": 2, "pinned": True}
        (queues,) = check(x, y, **options).queues
        found = plan_of(x, y, **options)
        one, many = (20 * 30, 7 * 30 * 40) if y.dim() == 3 else (30 * 40, 7 * 20 * 30)
        assert queues.copied["in"] == found.bytes_in == 4 * (one + many)
        assert found.passes_a == found.passes_b == 1


@pytest.mark.parametrize("shares", ["a", "b"])
def test_matrices_one_by_one_read_a_shared_operand_again(shares):
    a, b = torch.randn(3, 50, 40), torch.randn(3, 40, 60)
    a, b = (a[:1].expand_as(a), b) if shares == "a" else (a, b[:1].expand_as(b))
    a = a if shares == "a" else a.mT.contiguous().mT  # such a batch is no matrix of more rows
    options = {"tile": (50, 60), "pinned": True}
    copied = sum(x.copied["in"] for x in check(a, b, **options).queues)
    found = plan_of(a, b, **options)
    assert (found.repeats, found.matrices) == (3, 0)
    assert (found.passes_a, found.passes_b) == ((3, 1), (1, 3))[shares == "b"]
    assert copied == found.bytes_in == 3 * 4 * (50 * 40 + 40 * 60)


def test_batches_that_are_broadcast_against_each_other():
    """The last dimension goes in groups, for each index of the first one."""
    a, b = torch.randn(3, 1, 20, 30), torch.randn(1, 4, 30, 40)
    streamed = check(a, b, matrices=3, pinned=True)
    found = plan_of(a, b, matrices=3, pinned=True)
    assert found.shape == (12, 20, 40, 30) and found.repeats == 3
    assert found.grid.rows == 2 and found.steps == 6  # groups of 3 and of 1
    assert found.passes_a == 1 and found.passes_b == 3
    copied = sum(x.copied["in"] for x in streamed.queues)
    assert copied == found.bytes_in == 4 * (3 * 20 * 30 + 3 * 4 * 30 * 40)
    assert "3 times 2 groups of 3 matrices" in str(found)


def test_a_plan_of_several_groups_overlaps_copies_with_products():
    """One of the whole batch would be copied in, multiplied and copied out one after another."""
    a, b = meta(5000, 128, 64), meta(5000, 64, 96)
    found = plan(a, b, GIB)
    assert found.grid.rows > 2
    host = machine.Machine()
    seconds = found.seconds - host.start_seconds - host.call_seconds
    assert seconds < 0.8 * (found.in_seconds + found.product_seconds + found.out_seconds)


def test_a_simulated_gpu_takes_the_seconds_of_groups():
    for m, n, k, matrices in (
        *[(60, 40, 50, x) for x in (1, 2, 4, 11)],
        *[(60, 1, 50, 4), (1, 40, 50, 4), (60, 40, 1, 4), (32, 64, 96, 4), (1, 1, 64, 11)],
    ):
        a, b = torch.randn(11, m, k), torch.randn(11, k, n)
        (queues,) = check(a, b, matrices=matrices, pinned=True).queues
        found = plan_of(a, b, matrices=matrices, pinned=True)
        assert queues.seconds == pytest.approx(found.seconds, rel=1e-6)


def test_a_batch_has_no_kept_operand():
    found = plan(meta(50, 100, 300), meta(50, 300, 200), GIB)
    assert found.matrices and found.kept is None
    assert "those of both operands stream" in str(found)


def test_what_is_bound_by_launches():
    found = plan(meta(100_000, 1), meta(1, 100_000), 2 * MIB)
    assert found.bound == "launches" and "bound by launches" in str(found)
    assert found.launch_seconds == found.steps * machine.Machine().step_seconds
    assert found.seconds >= found.launch_seconds
    assert f"steps      {found.steps}\n" in str(found)


def test_no_plan_takes_less_time_than_its_launches():
    for size in (1, 300, 3000):
        found = plan(meta(size, size), meta(size, size), GIB)
        assert found.seconds >= found.launch_seconds


def test_launches_delay_products():
    sides = 1000, 1000, 1000
    order = order_of(torch.float32, sides, "fp32", "auto", (90, 132))
    sizes = sizes_of(order, *sides)
    fast, slow = machine.Machine(step_seconds=0), machine.Machine(step_seconds=1)
    candidates = [plan_module.Candidate(sizes, x, (300, 300), 1000, "b") for x in (fast, slow)]
    assert candidates[0].seconds(1) < 1 and 16 < candidates[1].seconds(1) < 17


@pytest.mark.parametrize("slices, kept", [(1, "b"), (2, "b"), (3, None)])
def test_no_operand_is_kept_where_both_stream(slices, kept):
    """Two slices of a panel have a slot each, and a third one has none."""
    a, b = torch.randn(40, 1024 * slices), torch.randn(1024 * slices, 40)
    options = {"tile": (20, 20), "depth": 1024, "kept": "b", "pinned": True}
    (queues,) = check(a, b, **options).queues
    found = plan_of(a, b, **options)
    assert found.kept == kept and queues.copied["in"] == found.bytes_in
    assert ("those of both operands stream" in str(found)) == (kept is None)
    assert found.passes_b == (1 if kept else 2)


def test_few_plans_of_kernels_are_asked_for():
    """A plan takes tens of milliseconds, most of them for cycles and workspaces of kernels."""
    plan_module.make_plan.cache_clear()
    order_module._cost.cache_clear()
    plan(meta(65536, 65536), meta(65536, 65536), 16 * GIB)
    assert order_module._cost.cache_info().misses < 1000
