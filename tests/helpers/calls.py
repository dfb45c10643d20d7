"""A record of the operators that run below autograd."""

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Appends every operator that is called in this context, and its arguments, to `calls`."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func.name(), args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def names(self, namespace="tiled"):
        return [name for name, _, _ in self.calls if name.startswith(namespace + "::")]
