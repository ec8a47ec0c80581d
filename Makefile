# Set up, run and check Tandem from a checkout. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVE_FLAGS ?=
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup serve console test test-monitoring test-web check format docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## build .venv with an editable install; does nothing while it is current

$(STAMP): pyproject.toml constraints.txt
	@echo 'Building $(VENV): about 2.5 GB, once.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[test,web]'
	touch $(STAMP)

serve: $(STAMP) ## serve the built-in model to four clients at once (SERVE_FLAGS adds flags)
	$(BIN)/tandem serve --parallel 4 $(SERVE_FLAGS)

console: $(STAMP) ## watch the running engine
	$(BIN)/tandem console

test: $(STAMP) ## run the whole suite in TEST_WORKERS processes; fetches the built-in model once
	$(BIN)/tandem models pull smollm2-135m
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test-monitoring: $(STAMP) ## check alert rules and metrics with promtool, fetched where it is not installed
	mkdir -p .cache
	$(BIN)/python -m tests.ops.exposition >.cache/metrics.txt
	ops/monitoring/check.sh --metrics <.cache/metrics.txt

test-web: $(STAMP) ## run the console in a real Chromium, installed with apt-get where there is none
	command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -m pytest tests/web

check: $(STAMP) ## lint, formatting, strict types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write the generated reference pages and ops/serve.env again
	$(BIN)/python -m tandem.reference

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .cache
