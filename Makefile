# Every target sets up what it needs; a second call is quick. `make help` lists them.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SEEDS  ?= 1000
ORDER  ?=

.DEFAULT_GOAL := help
.PHONY: docs package attack floods audit torture help setup test coverage demo check format stubs fuzz simulate interop interop-long interop-again bench lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## create .venv and install the package with its pinned dependencies

$(STAMP): pyproject.toml requirements/dev.lock
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or run make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: $(STAMP) ## run the tests (random order, or ORDER=number; three workers: half of their time is waiting)
	$(BIN)/python -m pytest -n 3 --dist worksteal $(if $(ORDER),--randomly-seed=$(ORDER)) --durations 15 tests --ignore tests/interop

# The rooms that keep other people's data, and the tests of those rooms: what they leave out is what nobody tried.
COVERED := broker client controller groups log metrics net raft records replication security timers transactions wire

coverage: $(STAMP) ## what the tests of the data-keeping rooms cover; fails below the floor (tool.coverage in pyproject.toml)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 300 --cov-report=term $(COVERED:%=--cov=moldau.%) \
		$(COVERED:%=tests/%) tests/e2e tests/cluster tests/upgrade

demo: $(STAMP) ## start a broker, show a round trip, clean up
	$(BIN)/python -m moldau.demo

check: $(STAMP) ## formatting, lint, strict types, import contracts, generated stubs up to date, known holes in pins
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/generate_stubs.py --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/audit_pins.py

audit: $(STAMP) ## known holes in what requirements/dev.lock pins (needs an index that tells them; some mirrors do not)
	$(BIN)/pip-audit --disable-pip --no-deps --strict --progress-spinner off -r requirements/dev.lock

format: $(STAMP) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

stubs: $(STAMP) ## rewrite the message types after editing the schema table
	$(BIN)/python scripts/generate_stubs.py

fuzz: $(STAMP) ## the long fuzz run (FUZZ_CASES=2000000 by default)
	FUZZ_CASES=$${FUZZ_CASES:-2000000} $(BIN)/python -m pytest -n 2 --timeout 3600 tests/wire/test_hostile_input.py tests/records/test_hostile_batches.py

simulate: $(STAMP) ## play SEEDS=1000 worlds full of crashes, cuts and bad disks, and report
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation --variants

interop: $(STAMP) ## foreign clients and Apache Kafka itself (needs Java 17, Maven, Go, Node and the network to their registries)
	$(BIN)/python -m pytest -n 2 --dist loadfile --timeout 600 --durations 25 -m "not long" tests/interop

attack: $(STAMP) ## every API, legal, mutated and huge, with a client beside it that must not notice (a quiet machine, minutes)
	$(BIN)/python -m tests.attack.run

floods: $(STAMP) ## 10,000 half-open TLS handshakes, trickling frames, connections and false logins, with a user who gets in
	$(BIN)/python -m tests.attack.floods $(COUNT)

torture: $(STAMP) ## three real processes killed, frozen and cut off under load (MINUTES=10 by default)
	$(BIN)/python -m tests.cluster.torture.run --minutes $${MINUTES:-10}

interop-long: $(STAMP) ## the interop tests that take minutes each
	$(BIN)/python -m pytest --timeout 1800 -m long tests/interop

interop-again: $(STAMP) ## what failed in the last make interop, once more
	@test -s build/interop-failed.txt || { echo "nothing failed, or the run was cut off"; exit 1; }
	$(BIN)/python -m pytest --timeout 600 @build/interop-failed.txt

docs: $(STAMP) ## build the site into build/site; a broken link or a missing page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(STAMP) ## build the wheel, install it in a clean environment, see that it works there and stays small
	$(BIN)/python -m scripts.check_package

bench: $(STAMP) ## measure against the peers in one run and rewrite docs/benchmarks.md
	$(BIN)/python -m benchmarks

lock: ## renew requirements/*.lock from pyproject.toml
	$(PYTHON) -m venv $(VENV)/lock && $(VENV)/lock/bin/pip install --quiet uv
	$(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group dev --group docs --group bench pyproject.toml -o requirements/dev.lock

clean: ## remove everything the targets made
	rm -rf $(VENV) build dist .coverage* .mypy_cache .ruff_cache .hypothesis .import_linter_cache moldau-data
