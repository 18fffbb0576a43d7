# make demo       install, then train v7 beside a dense model of its size
# make check      linters, type check and fast tests: at most 90 seconds on two cores
# make test       what CI runs, on a bare machine: install, linters, type check, tests: at most nine minutes
# make test-all   all tests, with the slow ones: at most 40 minutes

PYTHON ?= python3
VENV   := .venv
CONSTRAINTS ?= constraints.txt
BIN    := $(VENV)/bin

# some CPUs die inside oneDNN on bfloat16 without it; the library itself sets nothing
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

# the fast tests: the mathematics, configuration, checkpoints, data and utilities
CHECK := tests/memory tests/model/test_v7_unchanged.py tests/model/test_padding_and_cache.py tests/model/test_extremes.py \
         tests/checkpoint tests/utils tests/data/test_batches.py tests/data/test_token_split.py tests/data/test_bad_input.py \
         tests/study/test_statistics.py tests/study/test_identity.py tests/test_config.py tests/test_migrate.py \
         tests/test_imports.py tests/test_oracle.py

.PHONY: install demo lint browser check test test-all clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	@echo "Installing packages into $(VENV): 3 GB, one to three minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/gmt demo

lint: install
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright --warnings

# the pages are tested in a real Chromium: on a bare Debian machine it is installed here, elsewhere those tests are skipped
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; \
	then echo "browser tests: run, there is a Chromium"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	     DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	then echo "browser tests: run, Chromium was installed"; \
	else echo "browser tests: skipped, there is no Chromium and it cannot be installed here"; fi

check: lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(CHECK)

test: lint browser
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: lint browser
	$(BIN)/python -m pytest -n auto --dist worksteal

clean:
	rm -rf $(VENV) dist build
