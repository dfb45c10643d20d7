"""Copies of models and operands: by copy, pickle and torch.save."""

import copy
import io
import pickle

import torch


def pickled(x):
    return pickle.loads(pickle.dumps(x))


def saved(x, weights_only=False):
    """What torch.load makes of what torch.save wrote."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


COPIES = (copy.deepcopy, pickled, saved)
