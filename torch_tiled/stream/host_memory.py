"""The memory of tensors of the CPU: what they share, and which files are mapped there."""

import bisect
import os
import re

__all__ = ["may_overlap", "read_mappings", "share_memory", "why_not_mapped"]

# A line of /proc/self/maps, as proc(5) describes it.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) (\S+ \d+) *(.*)", re.ASCII)
_REMEDY = (
    "map the file for writing, as by torch.from_file(..., shared=True) or "
    'numpy.memmap(..., mode="r+")'
)


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


def read_mappings(tensors):
    """Returns the mappings of this process that tensors of the CPU meet.

    A process may have thousands of mappings, so the others are not parsed.

    Returns:
        (begin, end, flags, offset, file, path) of each mapping. `file` is the device and the
        inode, which hard links have in common. The list is empty if the system does not tell.
    """
    if not os.path.exists("/proc/self/maps"):
        return []
    with open("/proc/self/maps", "rb") as file:
        lines = file.read().split(b"\n")[:-1]  # by ascending addresses
    found = {}
    for x in tensors:
        if x.device.type != "cpu" or x.numel() == 0:
            continue
        first, end = _span(x)
        index = max(bisect.bisect_right(lines, first, key=_begin) - 1, 0)
        while index < len(lines) and _begin(lines[index]) < end:
            found[index] = _parse(lines[index])
            index += 1
    return list(found.values())


def _begin(line):
    return int(line[: line.index(b"-")], 16)


def _parse(line):
    text = line.decode(errors="surrogateescape")  # paths are bytes
    begin, end, flags, offset, file, path = _MAPPING.match(text).groups()
    path = path.replace("\\012", "\n")  # the one character that the system escapes
    return int(begin, 16), int(end, 16), flags, int(offset, 16), file, path


def _mappings_of(x, mappings):
    """Yields the mappings that a tensor meets: (flags, file, path, its bytes of the file)."""
    if x.device.type != "cpu" or x.numel() == 0:
        return
    first, end = _span(x)
    for begin, stop, flags, offset, file, path in mappings:
        if _meet((first, end), (begin, stop)):
            start = max(first, begin)
            in_file = offset + start - begin
            yield flags, file, path, (in_file, in_file + min(end, stop) - start)


def share_memory(x, y, mappings):
    """Returns whether two tensors may overlap, in memory or in a file that is mapped twice."""
    if x.numel() == 0 or y.numel() == 0 or x.device != y.device or x.is_meta:
        return False
    if _are_columns_apart(x, y):
        return False
    return _meet(_span(x), _span(y)) or any(
        path.startswith("/") and file == other and _meet(part, other_part)
        for _, file, path, part in _mappings_of(x, mappings)
        for _, other, _, other_part in _mappings_of(y, mappings)
    )


def _are_columns_apart(x, y):
    """Returns whether tensors are different columns of one row-major matrix."""
    if x.dim() != 2 or y.dim() != 2 or x.dtype != y.dtype or x.stride() != y.stride():
        return False
    pitch, step = x.stride()
    distance = y.data_ptr() - x.data_ptr()
    if step != 1 or pitch < 1 or distance % x.element_size():
        return False
    first = distance // x.element_size() % pitch  # of y's columns, if x's begin at 0
    return x.shape[1] <= first and first + y.shape[1] <= pitch


def _meet(x, y):
    (x_first, x_end), (y_first, y_end) = x, y
    return x_first < y_end and y_first < x_end


def why_not_mapped(x, mappings, *, written):
    """Returns why a tensor's memory cannot be read, or written, or None; it continues "a ...".

    An access would end the process: a file that is mapped for reading only refuses writes, and one
    that was cut has no memory beyond its end. Writes to a private map of a file would not reach it.
    """
    for flags, _, path, (_, needed) in _mappings_of(x, mappings):
        if written and "w" not in flags:
            return f"lies in memory that cannot be written{_of(path)}; {_REMEDY}"
        if written and "p" in flags and os.path.isfile(path):
            return f"is a private copy of the file {path}, which writes do not reach; {_REMEDY}"
        if os.path.isfile(path) and os.path.getsize(path) < needed:
            return (
                f"reaches to byte {needed} of the file {path}, which has {os.path.getsize(path)}; "
                "pass the part that the file has, or restore the file"
            )
    return None


def _of(path):
    return f": the file {path}" if path else ""
