# make demo and make test each set everything up by themselves on a bare clone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.docs-ready

.PHONY: demo test slow check docs paper coverage fuzz kills mutants wheel lowest sbom format clean

demo: $(READY)
	$(BIN)/fewer demo

# one process per core, one thread per process; a file stays in one process, so fixtures are made
# once; in the given order, because what comes last, the docstrings, is short. With bytecode
# written, code is compiled and assertions are rewritten once instead of in every process.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

# runs the gallery too; every warning is an error, nothing is fetched while building
docs: $(DOCS_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# small versions of every table and figure of the paper, in minutes; python -m paper --help has the rest
paper: $(READY)
	$(BIN)/python -m paper all --quick

# lines and branches that the tests run, those of processes that they start included
coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# damaged files for every reader and loader: RUNS each by plain mutation, then coverage-guided
RUNS ?= 2000
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet atheris==3.0.0
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz plain --runs $(RUNS)
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz atheris --runs $(RUNS)

# SIGKILL at 50 random moments of every command that writes
kills: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kills

# change the code in COUNT places of each module, and see whether a test notices
COUNT ?= 40
PROCESSES ?= 1
mutants: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutants --hand --processes $(PROCESSES)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutants --count $(COUNT) --processes $(PROCESSES)

# wheel and sdist, built twice with pinned tools: the same bytes
wheel:
	$(PYTHON) -m venv build/tools
	build/tools/bin/python $(HASHED) requirements/build.txt
	rm -rf build/first dist
	build/tools/bin/python -m build --no-isolation --outdir build/first . > /dev/null
	build/tools/bin/python -m build --no-isolation --outdir dist . > /dev/null
	cd dist && for file in *; do cmp $$file ../build/first/$$file || exit 1; sha256sum $$file; done

# the lowest versions in pyproject.toml, in an environment of their own; torch stays as pinned,
# because earlier builds for CPUs are not on every package index
lowest: $(READY)
	$(PYTHON) -m venv build/lowest
	$(BIN)/python tools/supply.py lowest > build/lowest/constraints.txt
	build/lowest/bin/python -m pip install --quiet --constraint build/lowest/constraints.txt \
		--editable ".[tables,stores,dask,onnx,anndata,excel,duckdb,remote,serve,tensorboard]" \
		hypothesis openapi-spec-validator polars pytest pytest-xdist
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -m "not slow" -n 2 --dist loadfile tests

# bill of materials (CycloneDX) of the library and what it needs
sbom: $(READY)
	mkdir -p dist
	$(BIN)/python tools/supply.py sbom > dist/fewer.cdx.json

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv docs/_build docs/api/generated docs/gallery

# constraints.txt pins every version, so that a clone made next year behaves as this one;
# requirements/ has the hashes of all but torch, whose builds for CPUs and for CUDA differ
HASHED := -m pip install --quiet --no-deps --only-binary :all: --require-hashes --requirement
OURS := -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable
$(READY): pyproject.toml constraints.txt requirements/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(HASHED) requirements/dev.txt
	$(BIN)/python $(OURS) ".[dev]"
	touch $(READY)

$(DOCS_READY): $(READY) requirements/docs.txt
	$(BIN)/python $(HASHED) requirements/docs.txt
	$(BIN)/python $(OURS) ".[docs]"
	touch $(DOCS_READY)
