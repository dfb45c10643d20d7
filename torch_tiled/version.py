__version__ = "0.1.0"
numerics_version = 2  # rises where a product of the same operands gets other bits
