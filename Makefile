# Two commands are all a newcomer needs: `make demo` and `make test`.
# Both make the virtual environment and install what they need; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-integrations check docs wheels bench reproduce stress clean

demo: $(VENV)/.demo
	$(BIN)/joulery demo

test: $(VENV)/.dev
	scripts/test

check: $(VENV)/.dev
	scripts/check

# The documentation as a site that fetches nothing, in .build/site.
docs: $(VENV)/.docs
	$(BIN)/zensical build --strict
	@echo 'The site is in .build/site; to read it: $(BIN)/python -m http.server -d .build/site'

# What goes to a package index, in dist: a manylinux wheel and an sdist, tried in fresh environments
# of every Python that is here. URL=https://… is where the repository is, for links of the package's page.
wheels: $(VENV)/.dev
	$(BIN)/python scripts/build_wheels.py --out dist --url "$(URL)"

# Integrations too large for `make test`, and the public tests of Zeus and CodeCarbon.
test-integrations: .venv-integrations/.done
	.venv-integrations/bin/python -m pytest tests/optional
	.venv-integrations/bin/python scripts/peer_suites.py

# Every benchmark in full, beside its peers, which live in an environment of their own; what they print
# goes into the pages. `make bench BENCH=--quick` runs the quick forms.
bench: $(VENV)/.dev .venv-peers/.done .venv-peer-server/.done
	$(BIN)/python scripts/bench.py $(BENCH)

# The figures and claims of Zeus (NSDI'23) from the traces of its artifact; see docs/explanation/reproduce.md.
DATA ?= $(or $(JOULERY_DATA),../shared/data)
reproduce: $(VENV)/.demo
	$(BIN)/python -m papers.zeus --data $(DATA) --out zeus-output

# Promises of durability and robustness at full counts; `make test` runs them at reduced ones.
stress: $(VENV)/.dev
	$(BIN)/python scripts/stress_governor.py
	$(BIN)/python scripts/stress_server.py
	$(BIN)/python scripts/stress_service.py
	$(BIN)/python scripts/stress_jobs.py honest
	$(BIN)/python scripts/stress_jobs.py adversaries
	$(BIN)/python scripts/stress_jobs.py deaths --clients 16 --seeds 40
	$(BIN)/python scripts/stress_jobs.py scale
	$(BIN)/python benchmarks/cluster.py --only-events --events 200
	$(BIN)/python benchmarks/cluster.py --plant 10 --hours 2
	$(BIN)/python scripts/stress_cluster.py --hours 2

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plots]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[plots,server]' --group docs
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[instruments,plots,server]' --group dev
	@touch $@ $(VENV)/.demo $(VENV)/.docs

.venv-integrations/.done: scripts/integrations.txt pyproject.toml
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-integrations/bin/python -m pip install --quiet -r scripts/integrations.txt -e '.[instruments,plots,server]' --group dev
	@touch $@

.venv-peers/.done: scripts/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/peers.txt -e .
	@touch $@

.venv-peer-server/.done: scripts/peer-server.txt
	$(PYTHON) -m venv .venv-peer-server
	.venv-peer-server/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/peer-server.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-integrations .venv-peers .venv-peer-server .build demo-output zeus-output .mypy_cache .ruff_cache .pytest_cache .hypothesis
