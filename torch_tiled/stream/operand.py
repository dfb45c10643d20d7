"""The panels of an operand: where they lie, and the slots on the GPU to which they are copied."""

import math

import torch

from .._internals import negative_view
from .sizes import SLOTS, pitch
from .staging import is_column_major, is_staged

__all__ = ["Operand"]


class Operand:
    """The panels of A or of B: on the host, and in slots on the GPU.

    Args:
        x: (rows, k), or (matrices, rows, k): B is transposed.
        rows: of a panel, or 0 for a group of matrices.
        depth: of K, in a panel.
        matrices: of a group.
        whole: the multiple to which a panel's depth is filled with zeros; 1 for none.
        device: of the slots.
    """

    def __init__(self, x, rows, depth, matrices, whole, device):
        self.is_conjugate = x.is_conj()
        x = x.conj() if self.is_conjugate else x
        self.is_negative = x.is_neg()
        self.x = negative_view(x) if self.is_negative else x
        self.rows, self.depth, self.matrices, self.whole = rows, depth, matrices, whole
        self.is_shared = x.dim() == 3 and x.stride(0) == 0  # one matrix for all of the batch
        self.is_on_host = self.x.device.type == "cpu"
        self.is_staged = is_staged(self.x)
        self.is_column_major = is_column_major(self.x)
        self.is_copied = self.is_on_host or self.x.device != device
        if self.is_copied:
            sides = rows or x.shape[-2], self._whole_depth(depth)
            count = 1 if self.is_shared else SLOTS
            self._slots = [self._make_slot(*sides, device) for _ in range(count)]

    def _make_slot(self, rows, depth, device):
        batch = (self.matrices,) if self.matrices and not self.is_shared else ()
        kind = {"dtype": self.x.dtype, "device": device}
        if self.is_column_major:
            slot = torch.empty((*batch, depth, pitch(rows, self.x.element_size())), **kind)
            return slot[..., :rows].mT
        slot = torch.empty((*batch, rows, pitch(depth, self.x.element_size())), **kind)
        return slot[..., :depth]

    def panel(self, index, slice_):
        """The panel where the operand lies, without its lazy bits."""
        x = self.x
        if self.matrices:
            return x[0] if self.is_shared else x[index * self.matrices :][: self.matrices]
        first_row, first = index * self.rows, slice_ * self.depth
        rows = x.narrow(0, first_row, min(self.rows, x.shape[0] - first_row))
        return rows.narrow(1, first, min(self.depth, x.shape[1] - first))

    def target(self, slot, panel):
        """The part of a slot to which a panel is copied, and the zeros that follow it along K."""
        part = self._slots[slot][: panel.shape[0]] if panel.dim() == 3 else self._slots[slot]
        part = part.narrow(-2, 0, panel.shape[-2])
        depth = panel.shape[-1]
        return part[..., :depth], part[..., depth : self._whole_depth(depth)]

    def operand(self, slot, index, slice_):
        """A panel as an operand of a product, on the GPU."""
        panel = self.panel(index, slice_)
        if self.is_copied:
            target, _ = self.target(slot, panel)
            depth = self._whole_depth(panel.shape[-1])
            panel = target.as_strided((*target.shape[:-1], depth), target.stride())
        panel = negative_view(panel) if self.is_negative else panel
        return panel.conj() if self.is_conjugate else panel

    def _whole_depth(self, depth):
        return math.ceil(depth / self.whole) * self.whole
