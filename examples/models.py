"""Trains whole models as they are, and converted: the time of a step, and how far apart they end.

    python examples/models.py
    python examples/models.py bert --steps 100
    python examples/models.py gpt2 pinn --profile
    python examples/models.py --flags

Both trainings start from the same weights and see the same batches; tasks.py has the models and
what they learn. Converted models of transformers have attention by torch_tiled, too. PyTorch
computes in IEEE float32, without TF32. On a CPU torch_tiled multiplies by torch.matmul, so that
only a GPU shows a difference. There some of PyTorch's functions, like index_add and the gradients
of convolutions, may add in another order each time, which alone sets trainings apart.
"""

import contextlib
import copy
import functools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from shared import Parser, Table, now, whole
from tasks import TASKS, Batch, Task
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiled

STEPS = 50
HELD_OUT = 8  # batches that no training sees
PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear")}


class Training:
    """A model in training, step by step."""

    def __init__(self, model: nn.Module, task: Task, overrides: bool = False) -> None:
        self.model, self.task, self.overrides = model, task, overrides
        self.optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> None:
        start = now(batch[0])
        self.optimizer.zero_grad()
        loss = self.differentiate(batch)
        self.optimizer.step()
        self.seconds.append(now(batch[0]) - start)
        self.losses.append(loss.item())

    def differentiate(self, batch: Batch) -> torch.Tensor:
        """Adds the gradients of a batch, and returns its loss."""
        with torch_tiled.override() if self.overrides else contextlib.nullcontext():
            loss = self.task.loss(self.model, batch)
            loss.backward()
        return loss

    def milliseconds(self) -> float:
        """The median step, without the first ones, in which memory is found."""
        return 1000 * statistics.median(self.seconds[len(self.seconds) // 4 :])

    def gradients(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.differentiate(batch)
        return torch.cat([x.grad.flatten().double() for x in self.model.parameters()])

    def weights(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def score(self, batches: list[Batch]) -> float:
        """The mean accuracy or, where the task has none, loss."""
        if self.task.accuracy is None:  # the loss may take derivatives
            return statistics.mean(self.task.loss(self.model, each).item() for each in batches)
        with torch.no_grad():
            return statistics.mean(self.task.accuracy(self.model, each).item() for each in batches)


def draw(task: Task, count: int, device: str) -> list[Batch]:
    return [tuple(each.to(device) for each in task.batch()) for _ in range(count)]


def errors(trainings: tuple[Training, ...], task: Task, batch: Batch) -> tuple[float, ...]:
    """The relative errors of the gradients of a batch, against those in float64."""
    model = copy.deepcopy(trainings[0].model).double()
    if task.has_experts:  # PyTorch's grouped_mm takes no float64
        model.set_experts_implementation("eager")
    exact = Training(model, task)
    right = exact.gradients(tuple(x.double() if x.is_floating_point() else x for x in batch))
    found = (each.gradients(batch) for each in trainings)
    return tuple(((x - right).norm() / right.norm()).item() for x in found)


@dataclass
class Comparison:
    layers: int  # converted
    errors: tuple[float, ...]  # of the first gradients: theirs, ours
    theirs: Training
    ours: Training
    scores: tuple[float, float, float]  # on data held out: at first, in the end theirs, ours
    apart: float  # the weights in the end, as a part of the way from where they began


def compare(task: Task, device: str, steps: int) -> Comparison:
    batches, held_out = draw(task, steps, device), draw(task, HELD_OUT, device)
    model = task.model.to(device)
    converted = copy.deepcopy(model)
    layers = len(torch_tiled.convert(converted).changed)
    task.prepare(converted)
    theirs, ours = Training(model, task), Training(converted, task, task.overrides)
    of_gradients = errors((theirs, ours), task, batches[0])
    start, at_first = theirs.weights(), theirs.score(held_out)
    for batch in batches:  # interleaved, so that both have the same clocks
        theirs.step(batch)
        ours.step(batch)
    moved = (theirs.weights() - start).norm()
    apart = ((ours.weights() - theirs.weights()).norm() / moved).item()
    scores = (at_first, theirs.score(held_out), ours.score(held_out))
    return Comparison(layers, of_gradients, theirs, ours, scores, apart)


def profiled(step: Callable[[], object], on_gpu: bool) -> tuple[float, float, float]:
    """Milliseconds that the device spends in a step on products, on attention and on all of it.

    Products are PyTorch's alone.
    """

    def milliseconds(events: list) -> float:
        times = [x.self_device_time_total if on_gpu else x.self_cpu_time_total for x in events]
        return sum(times) / 1000

    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as profiler:
        step()
    events = profiler.key_averages()
    # A kernel's time is that of the operator that launched it, too, which tells what it was for.
    operators = [x for x in events if x.key.startswith(("aten::", "tiled::"))]
    products = [x for x in operators if x.key in PRODUCTS]
    attention = [x for x in operators if "attention" in x.key]
    if on_gpu:  # all kernels by themselves, without marks such as the optimizer's
        events = [x for x in events if x.device_type == DeviceType.CUDA]
        events = [x for x in events if not x.is_user_annotation]
    return milliseconds(products), milliseconds(attention), milliseconds(events)


class CountFlags(TorchDispatchMode):
    """Counts the elements that products flag and recompute, of those that have a guard."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.with_flags = self.elements = self.flagged = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.tiled.matmul.default, torch.ops.tiled.linear.default):
            a, b = args[:2]
            transposed = func is torch.ops.tiled.linear.default
            self.count(torch_tiled.explain(a, b.mT if transposed else b))
        return func(*args, **(kwargs or {}))

    def count(self, facts: torch_tiled.ops.Explanation) -> None:
        if "recomputed" in facts.values:
            flagged = facts.values["recomputed"]
            self.products += 1
            self.with_flags += flagged > 0
            self.flagged += flagged
            self.elements += facts.values["sums"]


def add_comparison(table: Table, name: str, task: Task, done: Comparison) -> None:
    before, after = done.theirs.milliseconds(), done.ours.milliseconds()
    losses = done.theirs.losses[-1], done.ours.losses[-1]
    measure = "loss" if task.accuracy is None else "accuracy"
    row = (
        name,
        done.layers,
        before,
        after,
        before / after,
        *done.errors,
        *losses,
        measure,
        *done.scores,
    )
    table.add(*row, done.apart)


def add_flags(table: Table, name: str, found: CountFlags) -> None:
    if found.products == 0:
        print(f"{name:8}         0  (on this device no product has a guard)")
        return
    share = found.flagged / max(found.elements, 1)
    table.add(name, found.products, found.with_flags, found.elements, found.flagged, share)


def main() -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("models", nargs="*", help=f"of {', '.join(TASKS)} (default: all)")
    option("--steps", type=whole, default=STEPS)
    share = "also print the shares of a step that products and attention have with torch"
    option("--profile", action="store_true", help=share)
    flagged = 'also print how many elements "fp32" flags and recomputes in one more step'
    option("--flags", action="store_true", help=flagged)
    args = parser.parse_args()
    for name in args.models:
        if name not in TASKS:
            parser.error(f"there is no model {name}; choose of {', '.join(TASKS)}")
    torch.backends.cudnn.allow_tf32 = False

    print(f"on {args.device}, {args.steps} steps each, interleaved; held out: data neither saw;")
    print("apart: the weights in the end, as a part of the way from where they began")
    headings = f"{'ms a step':25}{'gradients off by':19}{'last loss':20}held out"
    print(f"{'':18}{headings}")
    speed = "torch 7.2f", "tiled 7.2f", "ratio 5.2f"
    held_out = "measure 8s", "at first .4f", "torch 7.4f", "tiled 7.4f"
    columns = (
        *speed,
        "torch 7.1e",
        "tiled 7.1e",
        "torch 8.5f",
        "tiled 8.5f",
        *held_out,
        "apart 7.1e",
    )
    table = Table("model 8s", "layers d", *columns)
    times, flags = {}, {}
    for name in args.models or TASKS:
        torch.manual_seed(args.seed)
        try:
            task = TASKS[name](full=args.device != "cpu")
        except ModuleNotFoundError as error:
            sys.exit(f"{name} needs {error.name}: pip install {error.name}")
        done = compare(task, args.device, args.steps)
        add_comparison(table, name, task, done)
        if args.profile:
            step = functools.partial(done.theirs.step, *draw(task, 1, args.device))
            times[name] = profiled(step, args.device != "cpu")
        if args.flags:
            with CountFlags() as flags[name]:
                done.ours.step(*draw(task, 1, args.device))
    if times:
        print("\na step with torch, and the ratio if its matrix products took no time at all")
        shares = "products 5.1%", "attention 5.1%"
        columns = "ms of products .2f", "ms of all .2f", *shares, "at most .2f"
        table = Table("model 8s", *columns)
    for name, (products, attention, total) in times.items():
        shares = products / total, attention / total
        table.add(name, products, total, *shares, total / (total - products))
    if flags:
        print("\na step's products that have a guard, those with flagged elements, and elements")
        columns = "products d", "with flags d", "elements 11d", "flagged d", "share 7.1e"
        table = Table("model 8s", *columns)
    for name, found in flags.items():
        add_flags(table, name, found)


if __name__ == "__main__":
    main()
