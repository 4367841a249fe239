# make train   train the tiny model on arithmetic, on this machine (overrides: make train ARGS="train.steps=5")
# make test    run the tests (less than 15 minutes on 2 cores); make test-all adds the slow ones
# Both set up .venv first; `make setup` does that part alone.

ARGS ?=
BIN := .venv/bin
export PYTHON

.PHONY: train test test-slow test-soak test-slurm test-gpu test-matrix test-all lint format setup clean

train: setup
	$(BIN)/da3po train experiment=quickstart $(ARGS)

test: setup
	$(BIN)/python -m pytest -m "not slow and not slurm and not gpu and not matrix and not soak" $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not slurm and not gpu and not soak" $(ARGS)

# Kills at every write, at random moments and in the middle of publications: minutes each, for changes to what they touch.
test-soak: setup
	$(BIN)/python -m pytest -m soak $(ARGS)

# Jobs on a Slurm of two nodes that the tests bring up: needs root and Debian's slurm-wlm and munge; skipped elsewhere.
test-slurm: setup
	$(BIN)/python -m pytest -m slurm $(ARGS)

# What only a machine with an NVIDIA GPU can show; skipped elsewhere.
test-gpu: setup
	$(BIN)/python -m pytest -m gpu $(ARGS)

# Every learner layout by models, algorithms and budgets, for changes to the learner. tools/test_matrix.sh has it on
# Python 3.12 and megatron-core 0.19.
test-matrix: setup
	$(BIN)/python -m pytest -m matrix $(ARGS)

test-all: test test-slow test-slurm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup:
	@sh tools/setup_env.sh

# Leaves runs/ alone: results are not build products.
clean:
	rm -rf .venv .venv312 build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
