"""The machine that a benchmark ran on: a results file's header, and the host's time of a call."""

import datetime
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

import torch_tiled
from benchmarks import ROOT


class Unreadable(Exception):
    """Something about the machine cannot be read; the message says why."""


def _output(*command: str) -> str | None:
    """The output of a command, or None where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _nvidia_smi(device: torch.device, *fields: str) -> list[str] | None:
    if device.type != "cuda":
        return None
    uuid = torch.cuda.get_device_properties(device).uuid
    query = f"--query-gpu={','.join(fields)}"
    line = _output("nvidia-smi", f"--id=GPU-{uuid}", query, "--format=csv,noheader,nounits")
    return line.split(", ") if line else None


def clocks(device: torch.device) -> dict | None:
    """Clocks in MHz, power in W and temperature in degrees now; None on a CPU."""
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    values = _nvidia_smi(device, *fields)
    if values is None:
        return None
    names = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
    return {name: _number(value) for name, value in zip(names, values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def energy_counter(device: torch.device) -> Callable[[], float]:
    """Reads the joules that a GPU has used so far, from NVML. Raises Unreadable."""
    if device.type != "cuda":
        raise Unreadable("only a GPU counts it")
    try:
        import pynvml
    except ImportError as error:
        raise Unreadable("NVML's Python package, nvidia-ml-py, is not installed") from error
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        raise Unreadable(f"NVML says: {error}") from error
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads"


def _git_state(commit: str | None) -> tuple[str | None, bool | None]:
    """The commit of the sources, and whether they differ from it; None where that is unknown."""
    top = _output("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if commit or top is None or Path(top) != ROOT:  # a copy may lie in a repository of its own
        return commit, None
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain")
    return _output("git", "-C", str(ROOT), "rev-parse", "HEAD"), changes != ""


def command_line(module: str, argv: list[str] | None, *files: Path | None) -> str:
    """The command line for a results file, without the folders of these files."""
    names = {str(file): file.name for file in files if file is not None}
    words = sys.argv[1:] if argv is None else argv
    return shlex.join(["python", "-m", module, *(names.get(word, word) for word in words)])


def describe(device: torch.device, command_line: str, commit: str | None = None) -> dict:
    """The part of the header that is known before anything has run."""
    driver = _nvidia_smi(device, "driver_version")
    git_commit, git_dirty = _git_state(commit)
    return {
        "device": device_name(device),
        "driver": driver[0] if driver else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "torch_tiled": torch_tiled.__version__,
        "numerics": torch_tiled.numerics_version,
        "git_commit": git_commit,
        "git_dirty": git_dirty,
        "command_line": command_line,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


# Each way to call: its name, how it is written, and the way of PyTorch's that it replaces.
_CALLS = (
    ("torch.mm", "torch.mm(x, weight)", "torch.mm"),
    ("torch_tiled.matmul", "torch_tiled.matmul(x, weight)", "torch.mm"),
    ("torch.ops.tiled.matmul", "torch.ops.tiled.matmul(x, weight)", "torch.mm"),
    ("torch.nn.Linear", "layer(x)", "torch.nn.Linear"),
    ("converted torch.nn.Linear", "converted(x)", "torch.nn.Linear"),
)


def overheads(device: torch.device, batches: int = 51, calls: int = 200) -> list[dict]:
    """Wall time of calls on 8x8 tensors, launches included: forward, and forward and backward.

    The calls are timed on float32 and on bfloat16, whose names say so. A time is the median over
    batches of calls; the ways to call alternate, batch by batch.

    Returns:
        A row for each way to call: its name ("call"), whether "backward" is in it, its time
        ("us"), PyTorch's way ("peer") and the multiple of that way's time ("over_peer").
    """
    rows = []
    for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ", bfloat16")):
        scope = _scope(device, dtype)
        for backward in (False, True):
            us = _host_us(scope, backward, batches, calls)
            rows += [
                {
                    "call": name + suffix,
                    "backward": backward,
                    "us": us[name],
                    "peer": peer + suffix,
                    "over_peer": us[name] / us[peer],
                }
                for name, _, peer in _CALLS
            ]
    return rows


def _scope(device: torch.device, dtype: torch.dtype) -> dict:
    """The names that _CALLS use."""
    where = {"device": device, "dtype": dtype}
    converted = torch.nn.Linear(8, 8, **where)
    torch_tiled.convert(converted)
    return {
        "torch": torch,
        "torch_tiled": torch_tiled,
        "x": torch.randn(8, 8, **where),
        "weight": torch.randn(8, 8, **where, requires_grad=True),
        "layer": torch.nn.Linear(8, 8, **where),
        "converted": converted,
    }


def _host_us(scope: dict, backward: bool, batches: int, calls: int) -> dict[str, float]:
    pass_back = ".backward(x)" if backward else ""
    timers = {name: Timer(call + pass_back, globals=scope) for name, call, _ in _CALLS}
    seconds = {name: [] for name in timers}
    with torch.set_grad_enabled(backward):
        for _ in range(batches):
            for name, timer in timers.items():
                seconds[name].append(timer.timeit(calls).mean)
    return {name: statistics.median(times) * 1e6 for name, times in seconds.items()}
