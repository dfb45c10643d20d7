"""Where tensors of the CPU lie: what they share, and which files are mapped there."""

import os
import re

__all__ = ["may_overlap", "share_memory", "why_not_mapped"]

# A line of /proc/self/maps, as proc(5) describes it.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) [0-9a-f:]+ \d+ *(.*)", re.ASCII)


def _span(x):
    """The addresses [first, end) of a tensor's elements."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def may_overlap(x):
    """Returns whether elements of a tensor may share memory: whether a dimension's stride is less
    than the span of those with smaller strides."""
    if x.numel() == 0:
        return False
    span = 1
    for stride, n in sorted((s, n) for n, s in zip(x.shape, x.stride(), strict=True) if n > 1):
        if stride < span:
            return True
        span += (n - 1) * stride
    return False


def share_memory(x, y):
    """Returns whether two tensors overlap, in memory or in a file that is mapped twice."""
    if x.numel() == 0 or y.numel() == 0 or x.device != y.device or x.is_meta:
        return False
    return _meet(_span(x), _span(y)) or any(
        path == other and _meet(part, other_part)
        for path, part in _parts_of_files(x)
        for other, other_part in _parts_of_files(y)
    )


def _meet(x, y):
    (x_first, x_end), (y_first, y_end) = x, y
    return x_first < y_end and y_first < x_end


def _parts_of_files(x):
    """The files that are mapped where a tensor lies: (path, (first byte, end))."""
    if x.device.type != "cpu" or not os.path.exists("/proc/self/maps"):
        return []
    first, end = _span(x)
    found = []
    for begin, stop, _, offset, path in _mappings(first, end):
        if path.startswith("/"):
            in_file = offset + max(first, begin) - begin
            found.append((path, (in_file, in_file + min(end, stop) - max(first, begin))))
    return found


def why_not_mapped(x, *, written):
    """Returns why a tensor's memory cannot be read, or written, or None; it continues "a ...".

    An access would end the process: a file that is mapped for reading only refuses writes, and one
    that was cut has no memory beyond its end.
    """
    if x.device.type != "cpu" or x.numel() == 0 or not os.path.exists("/proc/self/maps"):
        return None
    first, end = _span(x)
    for begin, stop, flags, offset, path in _mappings(first, end):
        if written and "w" not in flags:
            return (
                f"lies in memory that cannot be written{_of(path)}; map the file for writing, as "
                'by torch.from_file(..., shared=True) or numpy.memmap(..., mode="r+")'
            )
        needed = offset + min(end, stop) - max(first, begin) + max(first - begin, 0)
        if os.path.isfile(path) and os.path.getsize(path) < needed:
            return (
                f"reaches to byte {needed} of the file {path}, which has {os.path.getsize(path)}; "
                "pass the part that the file has, or restore the file"
            )
    return None


def _of(path):
    return f": the file {path}" if path else ""


def _mappings(first, end):
    """Yields the mappings that a span of addresses meets: (begin, end, flags, offset, path)."""
    with open("/proc/self/maps", errors="surrogateescape") as file:  # paths are bytes
        for line in file:
            begin, stop, flags, offset, path = _MAPPING.match(line).groups()
            begin, stop = int(begin, 16), int(stop, 16)
            if begin < end and first < stop:
                yield begin, stop, flags, int(offset, 16), path
