# Everything a newcomer needs; `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help env demo test lint bench clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

env: $(STAMP)  ## make the environment and install stolon into it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## fetch the default model and run the main job
	$(BIN)/stolon demo

test: $(STAMP)  ## fetch the default model and run all tests
	$(BIN)/stolon pull smollm2-135m
	$(BIN)/python -m pytest

lint: $(STAMP)  ## ruff, mypy --strict, the import-direction check
	BIN=$(BIN) bash scripts/lint.sh

bench: $(STAMP)  ## measure this machine, with llama.cpp as a peer where it is installed
	$(BIN)/stolon bench --peer llama.cpp

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
