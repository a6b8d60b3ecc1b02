# The commands of the README. The work is done by scripts/ and by the presets in CMakePresets.json.

PREFIX ?= /usr/local
MINUTES ?= 10
KILLS ?= 200
SEEDS ?= 10000
TOOL := build/release/bin/verbena
SAY_PATH = echo 'To call verbena by its name:  export PATH="$(CURDIR)/$(patsubst %/,%,$(dir $(TOOL))):$$PATH"'

.DEFAULT_GOAL := help
.PHONY: help build compile demo test soak soak-apps test-mpi test-pypi test-kernel test-hardware package test-package check format asan tsan bench-peers bench-mpi install clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: JOBS=N (parallel jobs), PREFIX=DIR (of install; default $(PREFIX)),"
	@echo "           MINUTES=N (of soak; default $(MINUTES)), KILLS=N and SEEDS=N (of soak-apps; $(KILLS) and $(SEEDS))"

build: compile  ## Install what is missing, compile; the tool is build/release/bin/verbena
	@$(SAY_PATH)

compile:
	@scripts/setup build run
	@scripts/build release product

demo: compile  ## Compare the protocols on this machine, measure the applications; writes build/demo/report.html
	@$(TOOL) demo
	@$(SAY_PATH)

test:  ## Build, then run all tests
	@scripts/setup build run test
	@scripts/build release
	@scripts/test release

soak:  ## Run the random tests with fresh seeds for MINUTES=N; failures go to build/soak/
	@scripts/setup build run test
	@scripts/build release
	@scripts/soak $(MINUTES)

soak-apps:  ## Of each application: kill KILLS=N processes, simulate SEEDS=N clusters with faults
	@scripts/setup build run test
	@scripts/build release
	@scripts/soak --kills $(KILLS) --seeds $(SEEDS)

test-mpi:  ## Run MPI programs over the libfabric provider; the MPIs come from the Python package index
	@scripts/setup build run mpi
	@scripts/build release product
	@scripts/test-mpi

test-pypi:  ## Run verbs programs of the Python package index on soft0: Mooncake, NIXL, ibverbs
	@scripts/setup build run mpi
	@scripts/build release product
	@scripts/test-pypi

package: compile  ## Build a .deb for this release of the distribution, and a wheel for pip; into build/package/
	@scripts/setup package
	@scripts/package-deb
	@scripts/package-wheel

test-package: package  ## Install both in a clean root, try them as an ordinary user, remove them; needs root
	@scripts/test-packages

test-kernel:  ## Test on the kernel's RDMA stack: soft-RoCE in emulated guests that a network joins
	@scripts/setup build run test kernel mpi
	@scripts/build release product kernel_test_programs
	@scripts/test-mpi --mpi mpich --install
	@scripts/test release -C kernel -L kernel

test-hardware:  ## The same tests on a device of this machine: DEVICE=mlx5_0
	@test -n "$(DEVICE)" || { echo "name a device: make test-hardware DEVICE=mlx5_0 (see 'verbena devices')"; exit 1; }
	@scripts/setup build run test mpi
	@scripts/build release product kernel_test_programs
	@scripts/test-mpi --mpi mpich --install
	@VERBENA_TEST_DEVICE="$(DEVICE)" scripts/test release -C hardware -L hardware

check:  ## Format, spelling, conventions, self-contained headers, clang-tidy
	@scripts/setup build check
	@scripts/check

format:  ## Format the sources with clang-format 14
	@scripts/setup check
	@scripts/check format --fix

asan:  ## Build and test with AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup build run test sanitize
	@scripts/build asan
	@scripts/test asan

tsan:  ## Build and test with ThreadSanitizer
	@scripts/setup build run test sanitize
	@scripts/build tsan
	@scripts/test tsan

bench-peers: compile  ## Measure side by side with UCX, gRPC and others; writes build/bench-peers.json
	@scripts/setup bench
	@scripts/build release
	@scripts/bench-peers

bench-mpi: compile  ## Measure MPIs over Verbena side by side with their other ways; writes build/bench-mpi.json
	@scripts/setup mpi
	@scripts/bench-mpi

# Does not rebuild: `make build` first as yourself, then `sudo make install`.
install: $(TOOL)  ## Install the tool, library and headers below PREFIX
	cmake --install build/release --prefix "$(PREFIX)"

$(TOOL):
	@$(MAKE) --no-print-directory build

clean:  ## Remove everything built
	rm -rf build
