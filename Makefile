# Every command of the project. `make demo` and `make test` need nothing but
# Python 3.11+ and make: the environment is made on first use and brought up to
# date whenever pyproject.toml changes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/installed.stamp
# How many tests run at once. Most of them wait more than they compute.
JOBS ?= 3
# How many seeds `make soak` gives the simulation, how many schedules to the step that all ranks
# save at, and how many agents it kills.
SEEDS ?= 5000
SCHEDULES ?= 10000
KILLS ?= 1000
# How many changes of the cores `make mutants` tries, and which of them.
COUNT ?= 60
SEED ?= 1
# How many rounds of real processes with faults `make chaos` lives, from seed SEED on.
ROUNDS ?= 50

.PHONY: demo demo-replicas test test-slow test-programs quick mutants check lint types protos site docs gen screenshots baseline bench chaos scale soak floors dist clean

demo: $(READY)
	$(BIN)/python examples/demo.py

# The same with replica groups of torchft, of which only the one that fails restarts.
demo-replicas: $(READY)
	$(BIN)/python examples/demo_replicas.py

# A quarter of the worlds and orders that `test-slow` tries. Processes of the tests start from compiled code,
# wherever Python is told to write none.
test: export PYTHONDONTWRITEBYTECODE =
test: check
	DRUMBEAT_SEEDS=50 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

# The rest: tests that take seconds alone or drive a browser, most of them with real processes; and
# all worlds of the simulation.
test-slow: export PYTHONDONTWRITEBYTECODE =
test-slow: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" tests/simulation tests/property

# What pip does not bring, of Debian and as root; tests that miss it skip. Not a part of `test`,
# which changes nothing outside of this folder.
test-programs:
	scripts/install_test_programs.sh

# While one works: what needs neither processes nor gRPC, under a minute on two cores. Slow ones are
# those of `test-slow`.
quick: export PYTHONDONTWRITEBYTECODE =
quick: $(READY)
	DRUMBEAT_SEEDS=10 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" \
		--hypothesis-profile=quick tests/simulation tests/property tests/unit tests/scenarios

# What the quick tests would not notice: single changes of the cores, each in a process of its own.
mutants: $(READY)
	$(BIN)/python scripts/mutants.py $(COUNT) $(SEED)

check: lint types protos site

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# The baseline is the protocol as last released, committed as an image: unlike a
# branch or a tag it is there in a shallow clone, a fork and a source archive.
protos: $(READY)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against tests/baseline.binpb
	$(BIN)/python scripts/gen_protos.py --check

# The documentation as a site, into build/site; a link or an anchor that leads nowhere is an error.
site: export NO_MKDOCS_2_WARNING = 1
site: $(READY)
	$(BIN)/mkdocs build --strict

# The same in a browser, at http://127.0.0.1:8000, anew at each change of a page.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/mkdocs serve

gen: $(READY)
	$(BIN)/python scripts/gen_protos.py
	$(BIN)/python scripts/gen_settings.py

# Pictures of the page, of real runs, in Chromium: a minute.
screenshots: $(READY)
	$(BIN)/python scripts/take_screenshots.py

# Part of a release, never of a change to the protocol.
baseline: $(READY)
	$(BIN)/buf build -o tests/baseline.binpb

bench: $(READY)
	$(BIN)/python -m bench.run

# The page of sizes from 10 to 10,000 agents, of your machine: an hour or two.
scale: $(READY)
	$(BIN)/python -m bench.scale.curves

# Real processes in networks of their own, as root; two rounds at once. OPTIONS: see `--help`.
chaos: $(READY)
	$(BIN)/python -m tests.chaos.run --rounds $(ROUNDS) --seed $(SEED) $(OPTIONS)

soak: $(READY)
	DRUMBEAT_SEEDS=$(SEEDS) DRUMBEAT_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest --timeout=0 -m "soak or not soak" \
		tests/simulation tests/property
	DRUMBEAT_LAUNCHERS=200 $(BIN)/python -m pytest --timeout=0 -k launchers \
		tests/integration/compat/test_multiprocessing_interface.py
	DRUMBEAT_FUZZ_S=600 $(BIN)/python -m pytest --timeout=0 \
		tests/integration/coordinator/test_fuzz.py
	DRUMBEAT_STRANGERS=5000 $(BIN)/python -m pytest --timeout=0 \
		tests/integration/coordinator/test_strangers.py
	$(BIN)/python -m pytest --timeout=0 -m soak tests/integration
	$(BIN)/python -m pytest --timeout=0 -m soak tests/e2e
	DRUMBEAT_LOOKS=27 $(BIN)/python -m pytest --timeout=0 tests/e2e/test_looking.py
	DRUMBEAT_FLIPS=5000 $(BIN)/python -m pytest --timeout=0 \
		tests/integration/coordinator/test_journal_damage.py
	DRUMBEAT_DAMAGES=200 $(BIN)/python -m pytest --timeout=0 -m soak tests/e2e/test_damaged_journals.py
	DRUMBEAT_KILLS=$(KILLS) $(BIN)/python -m pytest --timeout=0 tests/e2e/test_orphans.py

# The oldest versions pyproject.toml allows: the SDK lives where others pin them.
# Left out are what old packages do of themselves: gRPC leaks a task at an oversize message, writes of
# a handshake that failed, and names no reason for it; click imports json.
FLOORS_LEFT_OUT := tests/integration/coordinator/test_protocol.py::test_a_record_beyond_the_message_limit_is_refused \
	tests/integration/agent/test_access_of_a_job.py::test_grpc_writes_nothing_of_its_own_where_a_stranger_answers \
	tests/integration/coordinator/test_etcd_client.py::test_one_who_encrypts_is_told_of_one_who_does_not \
	tests/unit/agent/settings/test_cli.py::test_the_entry_point_imports_nothing_heavy

floors: .venv-floors/installed.stamp
	.venv-floors/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not torch and not slow" \
		tests/unit tests/property tests/integration $(addprefix --deselect ,$(FLOORS_LEFT_OUT))

.venv-floors/installed.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-floors
	.venv-floors/bin/python scripts/floors.py pyproject.toml > .venv-floors/constraints.txt
	.venv-floors/bin/pip install --quiet -e '.[test]' -c .venv-floors/constraints.txt
	touch $@

# Source archive, wheel, and the packages that an installation of the wheel consists of (SBOM).
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv --clear --without-pip .venv-dist
	$(BIN)/pip --python .venv-dist/bin/python install --quiet dist/*.whl
	rm .venv-dist/lib/*/site-packages/drumbeat-*/direct_url.json # the path of this folder
	$(BIN)/cyclonedx-py environment --output-file dist/drumbeat.cdx.json .venv-dist/bin/python

clean:
	rm -rf $(VENV) .venv-protoc .venv-floors .venv-dist .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info

# torch goes in first and alone, pinned, because it is by far the largest part.
$(VENV)/torch.stamp:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install torch==2.13.0
	touch $@

$(READY): pyproject.toml $(VENV)/torch.stamp
	$(BIN)/pip install --quiet -e '.[test,examples,docs,nvrx]'
	@# Slows each start of Python by 50 ms; nvidia-ml-py has the module that it stands for.
	$(BIN)/pip uninstall --quiet --yes pynvml
	touch $@
