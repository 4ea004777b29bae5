# Every target sets up what it needs by itself. `make` alone explains.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CACHE := $(or $(ANABRANCH_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/anabranch)
UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo $(CACHE)/uv/bin/uv)
RUN := $(UV) run --frozen

.PHONY: help setup up down status demo test slow lint unit property integration ui faults faults-rest soak test-compose audit sbom bench clean chromium

help: ## show this
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(CACHE)/uv/bin/uv:
	python3 -m venv $(CACHE)/uv && $(CACHE)/uv/bin/pip install --quiet uv==$(UV_VERSION)

setup: $(UV) ## install uv (if it is missing) and the locked Python environment
	@$(UV) sync --frozen --quiet

up: setup ## start the platform and wait until it answers
	$(RUN) anabranch up

down: setup ## stop it; the data stays
	$(RUN) anabranch down

status: setup ## show the services
	$(RUN) anabranch status

demo: setup ## the whole story on generated data, in a home of its own; checks its own numbers
	$(RUN) anabranch demo

lint: setup ## format, lint, types, and whether the schemas may change like that
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) anabranch schema check

test: lint chromium ## lint, unit and property tests, then the tests on the real services, but for the slow ones
	$(RUN) pytest -m "unit or property"
	$(RUN) pytest -v --durations 20 --maxfail 3 -m "(integration or ui) and not slow"
	$(RUN) pytest -v --durations 20 --maxfail 3 -m "faults and not slow"

slow: setup ## the tests that `make test` leaves out because they take long, but for those of `make faults`
	$(RUN) pytest -m "slow and not faults"

chromium: # the browser of the tests, from the distribution
	@command -v chromium chromium-browser >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
		|| { echo "the tests of Airflow's interface need Chromium: apt-get install chromium"; exit 1; }

unit: setup ## tests without services
	$(RUN) pytest -m unit

property: setup ## the laws, by Hypothesis, on a local Spark
	$(RUN) pytest -m property

integration: setup ## tests on the real services
	$(RUN) pytest -m integration

ui: setup chromium ## tests of Airflow's interface in a browser; screenshots in test-results/
	$(RUN) pytest -m ui

faults: setup ## every case of the table of faults, and the table: docs/faults.md (some three hours)
	rm -f test-results/faults.jsonl
	$(MAKE) faults-rest

faults-rest: setup ## go on with a run of `make faults` that was ended, or repeat what failed in it
	status=0; \
	$(RUN) pytest -v --rest -m faults $(addprefix --ignore=,$(ERASURE) $(CATALOGUE)) || status=$$?; \
	$(RUN) pytest -v --rest -m faults $(ERASURE) || status=$$?; \
	$(RUN) pytest -v --rest -m faults $(CATALOGUE) || status=$$?; \
	$(RUN) python -m tests.faults.table && exit $$status

# each on a platform of its own: what runs before takes the log away
ERASURE := tests/faults/test_erasure.py
CATALOGUE := tests/faults/test_controls.py tests/faults/test_catalogue.py
MINUTES ?= 60
SEED ?= 1
soak: setup ## faults upon faults under load: make soak MINUTES=60 SEED=1; figures in test-results/soak.json
	$(RUN) python -m tests.faults.soak --minutes $(MINUTES) --seed $(SEED)

test-compose: setup ## docker-compose.yml in real containers; needs root, docker with compose, debootstrap
	$(RUN) pytest -v -m compose

audit: setup ## known holes in what is locked (asks osv.dev), for Python
	$(UV) audit --frozen

sbom: setup ## what the product is made of, with licences: test-results/sbom.json, CycloneDX
	@mkdir -p test-results
	$(UV) export --quiet --frozen --no-dev --format cyclonedx1.5 | $(RUN) python -m infra.artifacts.sbom > test-results/sbom.json

bench: setup ## freshness and throughput, measured on a platform of its own
	$(RUN) python -m bench.run

clean: ## remove caches of tools; homes and fetched artifacts stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
