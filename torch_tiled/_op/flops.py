"""How torch.utils.flop_counter counts the operators: two operations for each FMA."""

import math

import torch
from torch.utils.flop_counter import register_flop_formula


def _matmul_flops(a_shape, b_shape, *_, **__):
    batch = torch.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    m = math.prod(a_shape[-2:-1])
    n = math.prod(b_shape[-1:]) if len(b_shape) > 1 else 1
    return 2 * math.prod(batch) * m * n * a_shape[-1]


def _gemm_flops(c_shape, a_shape, b_shape, *_, **__):
    return 2 * math.prod(c_shape) * a_shape[-1]


def _linear_flops(x_shape, weight_shape, *_, **__):
    return 2 * math.prod(x_shape) * weight_shape[0]


def register():
    register_flop_formula(torch.ops.tiled.matmul)(_matmul_flops)
    register_flop_formula(torch.ops.tiled.gemm_)(_gemm_flops)
    register_flop_formula(torch.ops.tiled.linear)(_linear_flops)
