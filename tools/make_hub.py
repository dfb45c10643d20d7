"""Writes build/hub/torch_tiled: the package as a repository from which `kernels` loads it.

    python tools/make_hub.py

The package `kernels` picks a folder of the repository's build/, a variant, by torch's version, its
CUDA and the system. A variant has the package's files and metadata.json. Its operators are in a
namespace of their own, which has a digest of the sources in its name: so it shares a process with
an installed torch_tiled, with the other variant and with other versions.

setup.py builds the libraries, by its environment variables; PORTABLE is 1 unless it is set. The two
variants differ in the objects that register the operators. Where there is no nvcc, only the CPU
variant is written; where there is one, that variant has the kernels for the GPU, too.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "torch_tiled"
HUB = ROOT / "build" / "hub"
REPOSITORY = HUB / "torch_tiled"

VERSION = 1  # of the repository: it rises where programs that load the one before would fail
STABLE_ABI = "torch-stable-abi211"  # OLDEST_TORCH of setup.py


def main() -> None:
    shutil.rmtree(HUB, ignore_errors=True)
    cuda = write_variant("cpu")["cuda"]
    if cuda == "none":
        say("there is no CUDA variant, because the library was built without CUDA.")
    else:
        write_variant("cuda")
    shutil.copy(ROOT / "LICENSE", REPOSITORY)


def write_variant(backend: str) -> dict:
    """Builds the library for a backend, "cpu" or "cuda", and writes the variant.

    Returns:
        What the library was built with: _C.json.
    """
    namespace = f"_torch_tiled_{backend}_{digest_of_sources()}"
    built = HUB / "library" / backend
    environment = {"PORTABLE": "1", **os.environ, "TORCH_TILED_NAMESPACE": namespace}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(built)]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        sys.exit(f"torch_tiled: the library of the {backend} variant could not be built.")

    record = json.loads((built / "torch_tiled" / "_C.json").read_text())
    name = "cu" + record["cuda"].replace(".", "") if backend == "cuda" else backend
    variant = f"{STABLE_ABI}-{name}-{platform.machine()}-linux"
    folder = REPOSITORY / "build" / variant
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("_C.*", "__pycache__"))
    shutil.copytree(built / "torch_tiled", folder, dirs_exist_ok=True)
    shutil.rmtree(built.parent)
    metadata = {
        "id": namespace,
        "name": "torch-tiled",
        "version": VERSION,
        "license": "BSD-3-Clause",
        "python-depends": [],
        "backend": {"type": backend},
    }
    if backend == "cuda":
        metadata["backend"]["archs"] = capabilities(record["architectures"])
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    say(f"wrote {folder.relative_to(ROOT)}.")
    return record


def digest_of_sources() -> str:
    """A digest of all that decides what the package does, without the names of its operators."""
    sources = [ROOT / "setup.py", *PACKAGE.rglob("*.py"), *(ROOT / "csrc").rglob("*")]
    digest = hashlib.sha256()
    for path in sorted(path for path in sources if path.is_file()):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def capabilities(architectures: list[str]) -> list[str]:
    """The architectures as `kernels` writes them: sm_90a is 9.0a, and compute_80 8.0+PTX."""
    found = [re.fullmatch(r"(sm|compute)_(\d+)(\d)(a?)", name) for name in architectures]
    return [f"{x[2]}.{x[3]}{x[4]}{'+PTX' if x[1] == 'compute' else ''}" for x in found]


def say(line: str) -> None:
    print(f"torch_tiled: {line}", flush=True)


if __name__ == "__main__":
    main()
