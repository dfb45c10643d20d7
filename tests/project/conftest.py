"""What is built for tests of the package.

The sdist is made from the checkout. The wheel and the repository for `kernels` are built in the
unpacked sdist, one after the other, since they share objects.
"""

import sys
from pathlib import Path

import pytest
from helpers.packaging import output_of, run, without_cuda
from helpers.workers import once_per_run


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    """The sdist, unpacked."""

    def make(folder: Path) -> Path:
        command = ("setup.py", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", folder)
        output_of(sys.executable, *command)
        (archive,) = folder.glob("*.tar.gz")
        output_of("tar", "-xf", archive, "-C", folder)
        return folder / archive.name.removesuffix(".tar.gz")

    return once_per_run(tmp_path_factory, "sdist", make)


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory) -> tuple[Path, str]:
    """The wheel, and what was printed while it was built."""
    if run(sys.executable, "-m", "pip", "--version").returncode != 0:
        pytest.skip("no pip")
    pip = (sys.executable, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps")

    def make(folder: Path) -> tuple[Path, str]:
        log = output_of(*pip, "--wheel-dir", folder, sdist, cwd=folder, **without_cuda(folder))
        (wheel,) = folder.glob("*.whl")
        return wheel, log

    return once_per_run(tmp_path_factory, "wheel", make)


@pytest.fixture(scope="session")
def hub(sdist, wheel, tmp_path_factory) -> tuple[Path, str]:
    """The repository that tools/make_hub.py wrote, and what it printed."""

    def make(folder: Path) -> tuple[Path, str]:
        environment = without_cuda(folder) | {"PORTABLE": "0"}
        log = output_of(sys.executable, "tools/make_hub.py", cwd=sdist, **environment)
        return sdist / "build" / "hub" / "torch_tiled", log

    return once_per_run(tmp_path_factory, "hub", make)
