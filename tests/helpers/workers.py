"""Work that a run does once, however many pytest-xdist workers share it."""

import fcntl
import os
import pickle


def once_per_run(tmp_path_factory, name, make):
    """Returns make(folder). The first worker that asks calls it; the others wait and unpickle its
    result from a folder that all workers of the run share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    folder.mkdir(exist_ok=True)
    result = folder / "result.pickle"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(result.read_bytes())
