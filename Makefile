# `make fit` and `make test` are each the only command a fresh machine needs (Python 3.11 to 3.13 with venv, and make).

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# `make fit` installs what it needs, `make test` everything; each list is installed once.
INSTALLED := $(VENV)/.installed-all
INSTALLED_TRAIN := $(VENV)/.installed-train
$(INSTALLED): EXTRAS := train loggers analysis export hf fairseq slurm notebooks dev
# Without byte code the installation takes half of the time; a first import writes what it reads. Containers often
# forbid that for their image's sake; here every process would then start six seconds later.
unexport PYTHONDONTWRITEBYTECODE
$(INSTALLED_TRAIN): EXTRAS := train
$(INSTALLED_TRAIN): PIP_FLAGS := --no-compile

# Local copies of named corpora; without the folder they are downloaded.
DATA_DIR ?= ../shared/data
LAMBDAS ?= 0.003,0.01,0.03,0.1
# Tests run in so many processes, a file in one of them, each with one thread.
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# More flags for fit.py or pytest:  make fit FLAGS="--seed 2",  make test FLAGS="-k gates"
FLAGS ?=

.PHONY: fit check test lint audit bounds multi30k install clean
.DELETE_ON_ERROR:

fit: $(INSTALLED_TRAIN)
	$(PY) fit.py --config toy --jobs 2 $(FLAGS)

# While editing: what failed last first, without the tests that train, export or start processes (`slow`, tests/conftest.py).
check: $(INSTALLED)
	$(PY) -m ruff check .
	$(PYTEST) -q -m "not slow" --failed-first $(FLAGS)

test: lint audit
	$(PYTEST) $(FLAGS)

# Versions with a known hole, installed or allowed; without a network (.ci/advisories.csv).
audit: $(INSTALLED)
	$(PY) .ci/audit.py

# The lowest and the newest versions that pyproject.toml allows, each in an environment of its own.
bounds: $(INSTALLED)
	$(PY) .ci/bounds.py lowest
	$(PY) .ci/bounds.py newest

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m mypy headgates benchmarks

# The reference run on real text: the base, then learned gates at each lambda, and the base trained as long.
# Stopped half-way, the same command goes on where it was.
multi30k: $(INSTALLED_TRAIN)
	$(PY) fit.py --config multi30k --gate none --resume $(if $(wildcard $(DATA_DIR)),--data-dir $(DATA_DIR)) $(FLAGS)
	$(PY) prune.py runs/multi30k-en-de-none-s1 --by l0 --lambda $(LAMBDAS) --epochs 6 --resume

install: $(INSTALLED)

# What pyproject.toml depends on, then the package itself as links: `headgates`, mypy and pyright find this checkout.
$(INSTALLED) $(INSTALLED_TRAIN): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; \
	  sys.exit(0 if (3, 11) <= v < (3, 14) else f'need Python 3.11 to 3.13, $(PYTHON) is %d.%d; say e.g. make PYTHON=python3.12' % v)"
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo '$(PYTHON) -m venv $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@$(PY) -c "import tomllib; \
	  file = tomllib.load(open('pyproject.toml', 'rb')); project, extras = file['project'], '$(EXTRAS)'.split(); \
	  print(*file['build-system']['requires'], *project['dependencies'], \
	    *(d for e in extras for d in project['optional-dependencies'][e]), sep='\n')" \
	  > $(VENV)/requirements.txt
	$(PY) -m pip install $(PIP_FLAGS) --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements.txt
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
