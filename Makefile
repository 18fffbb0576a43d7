# make demo   the first thing to try: installs, then trains a tiny memory model beside its dense twin
# make test   everything that CI runs, on a bare machine: a virtual environment, linters, type check, tests
# make lint   the fast part of it

PYTHON ?= python3
VENV   := .venv
CONSTRAINTS ?= constraints.txt
BIN    := $(VENV)/bin

# some CPUs die inside oneDNN on bfloat16 without it; the library itself sets nothing
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: install demo lint browser test clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

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

test: lint browser
	$(BIN)/python -m pytest -n auto --dist worksteal

clean:
	rm -rf $(VENV) dist build
