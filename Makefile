# Two commands do everything, set-up included: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready

.PHONY: help setup demo test lint types unit identity faults soak scale bench-vqgan bench-muse bench-mesh bench-mulan bench-soundstorm bench-video bench-overhead bench-view bench-shards browser figures reference results clean

help:
	@echo "make demo         set up, then train on embedded pictures and look at the result (under 10 minutes)"
	@echo "make test         set up, then lint, types and all tests"
	@echo "make identity     the working tree beside BASE=REV on this machine: every result must be the same bytes (RECIPES=\"muse …\")"
	@echo "make faults       every trial of the fault matrix, into docs/reliability.md (needs strace; about half an hour)"
	@echo "make soak         an hour of training; memory and open files must stay flat"
	@echo "make scale        many processes: every recipe by every launcher, changing worlds, memory in parts"
	@echo "make setup        the environment alone, in .venv"
	@echo "make bench-vqgan  a training step beside muse-maskgit-pytorch's"
	@echo "make bench-muse   masked transformers beside muse-maskgit-pytorch's: step, sampling, loss; and the code cache"
	@echo "make bench-mesh   mesh models beside meshgpt-pytorch's: steps, generation, loss, adjacency (about an hour)"
	@echo "make bench-mulan  sound and text beside musiclm-pytorch's: step, loss and retrieval (about an hour)"
	@echo "make bench-soundstorm  sound from codes beside soundstorm-pytorch's: step and generation"
	@echo "make bench-video  C-ViViT and Phenaki beside phenaki-pytorch's: steps and sampling"
	@echo "make bench-overhead  the loop's own share of a step"
	@echo "make bench-view   the run page: 200 runs of 100,000 rows, and 50 viewers of a live run (about 4 minutes)"
	@echo "make bench-shards a million items in shards beside webdataset (about ten minutes; WEBDATASET=folder of that package)"
	@echo "make browser      Debian's Chromium for the page's tests, where this may install it"
	@echo "make figures      the figure of the layers in docs/architecture.md, from the imports in the source"
	@echo "make reference    the pages of all configuration keys in docs/reference, from the source"
	@echo "make results      the longer proofs in docs/results.md (about 40 minutes; EMOJI=folder for the emoji)"

setup: $(SETUP)

# constraints.txt pins the tested set; bytecode is compiled once, because imports are slow without it.
$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q .venv/lib || true
	touch $(SETUP)

demo: setup
	$(BIN)/quintet demo image

test: lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Where it cannot be had, the tests that need it are skipped and say why; CI does not let them.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || test -n "$$QUINTET_BROWSER" || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium, and no right to install it: the page is not tested in a browser"

unit: setup browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist load

# A refactoring changes no byte. Work trees and the base's results are kept in .identity and used again.
identity: setup
	@test -n "$(BASE)" || { echo "error: give the revision to compare with: make identity BASE=REV" >&2; exit 2; }
	PYTHONPATH=tests $(BIN)/python -m identity --base "$(BASE)" --recipes "$(RECIPES)" --jobs $(or $(JOBS),2)

# Into a ledger of passed trials, from which the table is made.
faults: setup
	rm -f faults.jsonl
	OMP_NUM_THREADS=1 QUINTET_FAULTS=whole QUINTET_LEDGER=$(CURDIR)/faults.jsonl $(BIN)/pytest -n 2 --dist load tests/faults
	PYTHONPATH=tests $(BIN)/python -m faults.ledger faults.jsonl docs/reliability.md

soak: setup
	OMP_NUM_THREADS=1 QUINTET_SOAK_MINUTES=60 QUINTET_SOAK_RECORD=$(CURDIR)/benchmarks/results/soak.json \
		$(BIN)/pytest tests/faults/test_soak.py

# Beyond what `make test` tries of many processes. The run folders of the last command are left to look at.
SCALE := runs/scale
scale: setup
	OMP_NUM_THREADS=1 QUINTET_SCALE=whole $(BIN)/pytest -n 2 --dist load tests/contract/test_processes.py \
		tests/integration/test_processes.py tests/integration/test_restarts.py tests/unit/training/test_processes.py
	OMP_NUM_THREADS=1 QUINTET_LAUNCHER=accelerate $(BIN)/pytest -n 2 --dist load tests/contract/test_processes.py
	rm -rf $(SCALE)
	$(BIN)/quintet data make solids $(SCALE)/data --num 64
	for shard in none full; do OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc_per_node 2 benchmarks/sharding.py \
		$(SCALE)/data $(SCALE)/$$shard --shard $$shard || exit 1; done

bench-vqgan: setup
	$(BIN)/python benchmarks/vqgan.py

# On the tokenizer and data of `make results`.
bench-muse: setup
	$(BIN)/python benchmarks/muse.py step sample loss
	$(BIN)/python benchmarks/muse_cache.py --preset base
	$(BIN)/python benchmarks/muse_cache.py --preset small

bench-mesh: setup
	$(BIN)/python benchmarks/mesh.py step transformer generate loss adjacency
	$(BIN)/python benchmarks/mesh.py step transformer --precision bf16 --warmup 1

bench-mulan: setup
	$(BIN)/python benchmarks/mulan.py step loss
	$(BIN)/python benchmarks/mulan.py step --precision bf16 --warmup 1

bench-soundstorm: setup
	$(BIN)/python benchmarks/soundstorm.py step generate
	$(BIN)/python benchmarks/soundstorm.py step generate --precision bf16 --warmup 1

bench-video: setup
	$(BIN)/python benchmarks/cvivit.py
	$(BIN)/python benchmarks/phenaki.py step sample

bench-overhead: setup
	$(BIN)/python benchmarks/overhead.py

bench-view: setup
	$(BIN)/python benchmarks/view.py

bench-shards: setup
	$(BIN)/python benchmarks/shards.py runs/bench-shards

# A test compares it with the source.
figures: setup
	PYTHONPATH=src:tests $(BIN)/python docs/draw_layers.py

# A test compares them with the source.
reference: setup
	PYTHONPATH=src $(BIN)/python -m quintet.cli.reference

results: setup
	$(BIN)/quintet demo image --full --out runs/full
	$(BIN)/python benchmarks/emoji.py $(EMOJI)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
