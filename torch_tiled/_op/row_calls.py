"""Calls of reductions of rows from Python, past the kernels in Python if they would do nothing.

The kernel at the Autograd key applies a Function to tensors that require grad. For plain tensors it
is applied here, which costs the host half as much as to find it by the dispatcher.
"""

from .._internals import BelowAutograd, argument_names, call_without_python
from .call import call, entry_points
from .fast_path import is_plain
from .gradient_flow import may_require_grad
from .namespace import operators
from .out_of_memory import raise_if_out_of_memory


class RowCall:
    """An operator of rows, called with its tensors (or None) and then its options.

    Args:
        name: the operator's.
        function: the Function that differentiates it.
        tensors: the number of its tensors.
    """

    def __init__(self, name, function, tensors=1):
        op = getattr(operators, name).default
        self._entries, self._direct = entry_points(op), call_without_python(op)
        self._function, self._names, self._tensors = function, argument_names(op), tensors

    def __call__(self, *arguments):
        tensors = [x for x in arguments[: self._tensors] if x is not None]
        if not is_plain(*tensors):
            return call(self._entries, arguments[0], **self._named(1, arguments))
        try:
            if not may_require_grad(*tensors):
                with BelowAutograd():
                    return self._direct(*arguments)
            options = arguments[self._tensors :]

            def below(*tensors):
                with BelowAutograd():
                    return self._direct(*tensors, *options)

            named = self._named(self._tensors, arguments)
            return self._function.apply(below, named, *arguments[: self._tensors])
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise

    def _named(self, first, arguments):
        """The arguments from this place on by their names."""
        return dict(zip(self._names[first:], arguments[first:], strict=True))
