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

# A Python for each peer; see bench/README.md. Without one the peer is looked for in this environment.
LLAMA_CPP_PYTHON ?=
OPENVINO_PYTHON  ?=
VLLM_PYTHON      ?=
MODELS           ?= smollm2-135m

bench: $(STAMP)  ## measure this machine beside its peers, see bench/README.md
	mkdir -p build
	$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/python -m pip install -qq 'matplotlib>=3.8'
	$(BIN)/stolon bench engine --peers llama.cpp,openvino,vllm \
	  $(if $(LLAMA_CPP_PYTHON),--peer-python llama.cpp=$(LLAMA_CPP_PYTHON)) \
	  $(if $(OPENVINO_PYTHON),--peer-python openvino=$(OPENVINO_PYTHON)) \
	  $(if $(VLLM_PYTHON),--peer-python vllm=$(VLLM_PYTHON)) \
	  $(foreach model,$(MODELS),--model $(model)) --json build/bench.json --plot build/bench.png

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
