"""The three queues of a GPU: copies in, products, copies out."""

import contextlib
import functools

import torch

__all__ = ["QUEUES", "CudaQueues"]

QUEUES = ("in", "compute", "out")


@functools.cache
def _streams_of_copies(device):
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class CudaQueues:
    """A CUDA stream for each queue. Work in different queues is ordered by events alone.

    Products run in the stream that is current where this is made, so that PyTorch's allocator has
    their memory for the caller, too. Tests put the queues of a simulated device in its place, with
    the same methods.
    """

    def __init__(self, device):
        self.device = device
        current = torch.cuda.current_stream(device)
        copies_in, copies_out = _streams_of_copies(device)
        copies_in.wait_stream(current)  # operands on the GPU may still be computed
        self._streams = {"in": copies_in, "compute": current, "out": copies_out}

    def run(self, queue, function, *arguments):
        """Calls a function whose kernels and copies go to the queue."""
        with torch.cuda.stream(self._streams[queue]):
            function(*arguments)

    def record(self, queue):
        """Returns an event: all that the queue has so far."""
        return self._streams[queue].record_event()

    def wait(self, queue, event):
        """Lets what follows in the queue wait for the event."""
        self._streams[queue].wait_event(event)

    def synchronize(self):
        """Waits for all that is in the queues."""
        for stream in self._streams.values():
            stream.synchronize()

    def context(self):
        """The context in which a thread uses the queues, and allocates memory for products."""
        stack = contextlib.ExitStack()
        stack.enter_context(torch.cuda.device(self.device))
        stack.enter_context(torch.cuda.stream(self._streams["compute"]))
        return stack
