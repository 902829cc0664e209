# The README's two commands. Each sets up all that it needs, in .venv.
PYTHON ?= python3
BIN = .venv/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --retries 5 install --quiet
DEMO = .cache/demo/vllm

.PHONY: demo test lint bench clean

demo: .venv/demo
	@rm -rf .cache/demo && mkdir -p .cache/demo && cp -R fixtures/enginex/vllm .cache/demo/
	$(BIN)/muhmod apply --rules bi100 -v $(DEMO)
	$(BIN)/muhmod apply --rules bi100 -q $(DEMO)
	$(BIN)/muhmod apply --rules bi100 --check -q $(DEMO)
	$(BIN)/muhmod revert $(DEMO)
	@diff -r fixtures/enginex/vllm $(DEMO) && echo "the tree is as it was, byte for byte"

test: .venv/test
	$(BIN)/python -m pytest

lint: .venv/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src codemods tests benchmarks
	$(BIN)/mypy

bench: .venv/bench
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/h200.py

clean:
	rm -rf .venv .cache build dist

.venv/made:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo: .venv/made pyproject.toml
	$(PIP) -e . || $(PIP) -e .
	@touch $@

.venv/test: .venv/made pyproject.toml
	$(PIP) -e '.[test]' || $(PIP) -e '.[test]'
	@touch $@

.venv/lint: .venv/made pyproject.toml
	$(PIP) -e '.[test,lint]' || $(PIP) -e '.[test,lint]'
	@touch $@

.venv/bench: .venv/made pyproject.toml
	$(PIP) '.[bench,test]' || $(PIP) '.[bench,test]'
	@touch $@
