# Everything that is done with a checkout. It needs Python 3.10, 3.11 or 3.12, pip and make; `make` lists the commands.
#   make train ARGS="-o run.seed=2"       further arguments for the program
#   make setup PYTHON=/opt/py/bin/python  another Python

PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10; do \
	$$python -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$python; exit; }; done; echo python3)
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
ARGS ?=

VENV := .venv
IN_VENV := $(VENV)/bin/
# The stamp is named after what was installed and where, so that a change of either installs afresh and nothing else does.
INSTALLED := $(VENV)/installed-$(shell (pwd; cat requirements.txt pyproject.toml) | cksum | cut -d ' ' -f 1)
REVIEWS := $(addprefix data/reviews/,train.txt dev.txt test.txt label.txt)
# Without those that need another environment, a trained detector, or are no command.
BENCHMARKS ?= $(filter-out %/finished_cells.py %/det_pipeline.py %/det_gauge.py %/det_side_by_side.py,$(sort $(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup data train test lint bench visualdl check-device clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(INSTALLED) ## make the virtual environment in .venv and install into it

# An older pip fails on packages that are published as source only, so the pinned one comes first. They are built with
# pinned tools too. The stamp comes last: an interrupted set-up starts again. A Debian without python3-venv has no
# ensurepip, and a pip that can install into another environment.
$(INSTALLED):
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Python 3.10, 3.11 or 3.12 is needed, not $$($(PYTHON) --version):" \
		"make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(IN_VENV)python install "$$(grep -o '^pip==[^ ]*' requirements.txt)"; }
	$(IN_VENV)python -m pip install $$(grep -oE '^(pip|setuptools)==[^ ]*' requirements.txt)
	$(IN_VENV)python -m pip install --build-constraint requirements.txt -r requirements.txt
	$(IN_VENV)python -m pip install --no-deps --no-build-isolation -e .
	$(IN_VENV)python -m pip check
	touch $@

data: $(REVIEWS) ## write the reviews that the default recipe trains on to data/reviews

$(REVIEWS) &: | $(INSTALLED)
	$(IN_VENV)python tools/prepare_data.py reviews

train: $(INSTALLED) $(REVIEWS) ## train configs/ernie_cls.yaml
	$(IN_VENV)python tools/train.py -c configs/ernie_cls.yaml --resume auto $(ARGS)

test: $(INSTALLED) ## run the whole test suite
	$(IN_VENV)python -m pytest $(ARGS)

lint: $(INSTALLED) ## check style and types
	$(IN_VENV)ruff check .
	$(IN_VENV)ruff format --check .
	$(IN_VENV)mypy

bench: $(INSTALLED) ## run the benchmarks that need nothing else; BENCHMARKS=benchmarks/x.py runs one
	set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(IN_VENV)python $$benchmark $(ARGS); done

visualdl: $(INSTALLED) ## show the runs at http://localhost:8040
	$(IN_VENV)visualdl --logdir runs --port 8040 --disable-telemetry $(ARGS)

check-device: $(INSTALLED) ## try on this machine's GPU what a CPU cannot show, in about five minutes
	$(IN_VENV)python tools/check_device.py $(ARGS)

clean: ## remove the virtual environment and caches, but neither data nor runs
	rm -rf $(VENV) *.egg-info build .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -not -path './.git/*' -exec rm -rf {} +
