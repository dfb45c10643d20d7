"""What belongs to the caller: settings, generators, devices, streams and contexts."""

import ctypes
import os
import warnings

import torch


def caller_state():
    """Everything of the process and thread that a product must leave as it is."""
    matmul = torch.backends.cuda.matmul
    state = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warning only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill uninitialized memory": torch.utils.deterministic.fill_uninitialized_memory,
        "float32 precision": torch.get_float32_matmul_precision(),
        "tf32": (matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "fp16 reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduction": matmul.allow_bf16_reduced_precision_reduction,
        "autocast cache": torch.is_autocast_cache_enabled(),
        "generator": torch.get_rng_state().numpy().tobytes(),
        "denormal numbers": (torch.tensor(1e-40) * torch.tensor(1.0)).item(),
        "environment": dict(os.environ),
        "warning filters": list(warnings.filters),
    }
    for device in ("cpu", "cuda"):
        state[f"autocast, {device}"] = (
            torch.is_autocast_enabled(device),
            torch.get_autocast_dtype(device),
        )
    if torch.cuda.is_available():
        state |= {
            "device": torch.cuda.current_device(),
            "stream": torch.cuda.current_stream().cuda_stream,
            "context": current_context(),
            "BLAS": torch.backends.cuda.preferred_blas_library(),
            "allocator": torch.cuda.get_allocator_backend(),
            "generator of CUDA": torch.cuda.get_rng_state().numpy().tobytes(),
        }
    return state


def current_context():
    """The handle of the thread's current CUDA context; None if it has none."""
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value
