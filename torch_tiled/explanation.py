"""Prints the fields in which csrc explains a product (csrc/binding/explain.cpp)."""

import types

__all__ = ["Explanation", "explanation_of"]


class Explanation(types.SimpleNamespace):
    """How a product would be computed: the result of torch_tiled.explain.

    Its fields are strings, and depend on the product; `algorithm` is always there. str() has a line
    for each field. `values`, which is not printed, is a dict with the same as numbers and names,
    unrounded, such as the model's `cycles`.

    Examples:
        >>> plan = torch_tiled.explain(torch.randn(8, 64), torch.randn(64, 16))
        >>> plan.dtype
        'torch.float32, precision fp32'
    """

    def __str__(self):
        texts = {name: text for name, text in vars(self).items() if name != "values"}
        width = max(map(len, texts), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in texts.items())


def explanation_of(values):
    """The Explanation that csrc's fields make."""
    shape = tuple(values["shape"])
    texts = {
        "problem": f"{_sizes(values)}, result {shape}",
        "dtype": f"{values['dtype']}, precision {values['precision']}",
        "layout": f"a {values['a_layout']}, b {values['b_layout']}",
    }
    if "order" not in values:
        texts |= {
            "algorithm": values["algorithm"],
            "why": "on the CPU auto is PyTorch's own product",
        }
        return Explanation(**texts, values=values)
    real = values.get("real_product")
    if real:
        texts["real_product"] = _sizes(real)
    if "reads_operands" in values:
        for name in ("a", "b"):
            texts[f"{name}_is_read"] = _reading(values, name)
    waves = -(-values["blocks"] // values["sms"])
    texts |= {
        "algorithm": values["algorithm"],
        "tile": "{}x{}".format(*values["tile"]),
        "blocks": str(values["blocks"]),
        "waves": f"{waves} of {values['sms']} SMs",
        "cycles": f"{values['cycles']:.3g} by the model",
        "why": _why(values["others"]),
        "order": _order(values),
    }
    if values["is_guarded"]:
        chunks, sizes = values["chunks"], real or values
        texts["scale_groups"] = (
            f"{sizes['m'] * chunks} of a's rows and {sizes['n'] * chunks} of b's columns in a "
            f"matrix, one a chunk"
        )
    if "recomputed" in values:
        kind = "parts" if real else "elements"
        texts["recomputed"] = f"{values['recomputed']} of {values['sums']} {kind}"
    return Explanation(**texts, values=values)


def _sizes(of):
    return f"m = {of['m']}, n = {of['n']}, k = {of['k']}"


def _reading(values, name):
    if not values["reads_operands"]:
        return "not at all"
    nbytes = values[f"{name}_pass_bytes"]
    return f"in {nbytes} bytes, to which a pass writes it" if nbytes else "as it lies"


def _why(others):
    if not others:
        return "the only candidate"
    return "fewest cycles, against " + ", ".join(f"{name} {cycles:.3g}" for name, cycles in others)


def _order(values):
    order, count = values["order"], max(values["chunks"], 1)
    if order == "plain":
        return "ascending in K"
    on_tensor_cores = order in ("mma", "tf32")
    chunk = ("chain" if on_tensor_cores else "chunk") + ("" if count == 1 else "s")
    chunks = f"{count} {chunk} of at most {values['chunk']} in K"
    if on_tensor_cores:
        scaled = ", of scaled float16" if order == "tf32" else ""
        return f"{chunks} on tensor cores{scaled}, added in order"
    products = f"three float16 products promoted every {values['promotion']}"
    return f"{chunks}, each {products if order == 'fp16x3' else 'ascending'}, added in order"
