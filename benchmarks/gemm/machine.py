"""The machine that a benchmark ran on: a results file's header."""

import argparse
import datetime
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

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
    fields = {
        "sm_mhz": "clocks.sm",
        "memory_mhz": "clocks.mem",
        "power_w": "power.draw",
        "temperature_c": "temperature.gpu",
    }
    values = _nvidia_smi(device, *fields.values())
    return values and dict(zip(fields, map(_number, values), strict=True))


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


def describe(args: argparse.Namespace, *options: str) -> dict:
    """The part of the header that is known before anything has run, with the values of options."""
    device = torch.device(args.device)
    driver = _nvidia_smi(device, "driver_version")
    git_commit, git_dirty = _git_state(args.commit)
    return {
        "device": device_name(device),
        "driver": driver[0] if driver else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "torch_tiled": torch_tiled.__version__,
        "numerics": torch_tiled.numerics_version,
        "git_commit": git_commit,
        "git_dirty": git_dirty,
        "command_line": args.command_line,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: getattr(args, name) for name in options},
    }
