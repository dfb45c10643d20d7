"""The panels that GPUs have of one product, from which other GPUs copy them.

A panel that several GPUs need is then read from the host once, if one GPU still has it when the
next one needs it. GPUs of one speed need the same streamed panel at about the same time.
"""

import dataclasses
import threading

__all__ = ["Panels"]


@dataclasses.dataclass(eq=False)
class _Copy:
    """A panel in a slot of a GPU.

    Attributes:
        memory: the part of the slot that has the panel.
        loaded: a future of the event after which the panel is there.
        readers: futures of the events after which other GPUs have read it.
    """

    memory: object
    loaded: object
    readers: list


class Panels:
    """The panels in the slots of all GPUs.

    A caller holds `lock` from find() until what it found is in `readers` and what it loads was
    added. A copy thus waits for copies alone that were issued before it, and never for itself.

    Attributes:
        lock: a threading.Lock.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self._copies = {}  # (operand, index, slice): the copies of that panel

    def find(self, key):
        """Returns the newest copy of a panel, or None."""
        copies = self._copies.get(key)
        return copies[-1] if copies else None

    def add(self, key, memory, loaded):
        """Returns the copy of a panel that is there after `loaded`."""
        copy = _Copy(memory, loaded, [])
        self._copies.setdefault(key, []).append(copy)
        return copy

    def remove(self, key, copy):
        """Forgets a copy, whose slot is filled anew once its `readers` have read it."""
        self._copies[key].remove(copy)
