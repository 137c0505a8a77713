# `make demo` and `make test` do everything, including the set-up.

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready

.PHONY: help setup demo test lint types unit compile-budget identity faults fuzz soak scale bench-vqgan bench-muse bench-mesh bench-mulan bench-soundstorm bench-video bench-overhead bench-saving bench-mfu bench-plan bench-view bench-shards speedrun browser figures reference migration results prove clean

help:
	@echo "make demo         set up, then train on synthetic images and show the result (under 10 minutes)"
	@echo "make test         set up, then run the linter, the type checker and all tests"
	@echo "make identity     compare the working tree with BASE=REV on this machine: all results must be byte-identical (RECIPES=\"muse …\")"
	@echo "make compile-budget  train every recipe with engine.compile and count graphs, breaks and recompilations (BACKEND=eager, aot_eager or inductor)"
	@echo "make faults       run the fault matrix and update docs/reliability.md (needs strace; parts: RECIPE=muse, RECIPE=any, TESTS=file)"
	@echo "make fuzz         read mutated media and metadata files for MINUTES=10, with limits on time and memory per file"
	@echo "make soak         train for one hour; memory and the number of open files must stay constant"
	@echo "make scale        test many processes: all recipes with all launchers, changing world sizes, and FSDP memory"
	@echo "make setup        only create the environment in .venv"
	@echo "make bench-vqgan  compare a VQ-GAN training step with muse-maskgit-pytorch"
	@echo "make bench-muse   compare masked transformers with muse-maskgit-pytorch: step, sampling, loss; and the token cache"
	@echo "make bench-mesh   compare mesh models with meshgpt-pytorch: steps, generation, loss, adjacency (about an hour)"
	@echo "make bench-mulan  compare MuLaN with musiclm-pytorch: step, loss and retrieval (about an hour)"
	@echo "make bench-soundstorm  compare SoundStorm with soundstorm-pytorch: step, generation, loss (more than an hour)"
	@echo "make bench-video  compare C-ViViT and Phenaki with phenaki-pytorch: steps, sampling, loss (more than an hour)"
	@echo "make bench-overhead  measure the overhead of the training loop"
	@echo "make bench-saving measure what a save every 50 steps costs, written in the loop and in the background"
	@echo "make bench-mfu    measure FLOP/s of a training step of every recipe, as a fraction of the peak (MFU), in fp32 and bf16"
	@echo "make bench-plan   compare memory and FLOPs of quintet plan with those of real steps on this CPU (about two minutes)"
	@echo "make bench-view   measure the web page: 200 runs of 100,000 rows, and 50 viewers of a live run (about 4 minutes)"
	@echo "make bench-shards compare a million items in shards with webdataset (about ten minutes; WEBDATASET=folder of that package)"
	@echo "make speedrun     measure how long the demo of MEDIUM=image takes to reach its targets, with SEEDS=0,1,2 (docs/speedrun.md)"
	@echo "make browser      install Chromium from Debian for the tests of the web page, if permitted"
	@echo "make figures      draw the layers in docs/architecture.md from the imports in the source"
	@echo "make reference    write the pages of all configuration keys, docs/reference"
	@echo "make migration    execute the usages of the original packages and write docs/migration*.md"
	@echo "make prove        list the commands behind docs/results.md, find figures older than their code, and measure for MINUTES=60"
	@echo "make results      run the longer experiments of docs/results.md (about 40 minutes; EMOJI=folder of the emoji)"

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

# Without a browser, the tests that need it are skipped with a reason; CI requires it.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || test -n "$$QUINTET_BROWSER" || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium, and no permission to install it: the web page is not tested in a browser"

unit: setup browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist load

# The table of docs/gpu.md.
compile-budget: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests BACKEND=$(or $(BACKEND),eager) $(BIN)/python -m contract.compile_budget

# A refactoring changes no byte. Work trees and the results of BASE are cached in .identity.
identity: setup
	@test -n "$(BASE)" || { echo "error: name the revision to compare with: make identity BASE=REV" >&2; exit 2; }
	PYTHONPATH=tests $(BIN)/python -m identity --base "$(BASE)" --recipes "$(RECIPES)" --jobs $(or $(JOBS),2)

# Adds the passed trials to a ledger, from which the table is generated. A part with a failed test is not recorded.
faults: setup
	rm -f faults.jsonl
	OMP_NUM_THREADS=1 QUINTET_FAULTS=whole QUINTET_FAULTS_RECIPE="$(RECIPE)" QUINTET_LEDGER=$(CURDIR)/faults.jsonl \
		$(BIN)/pytest -n 2 --dist load -m fault $(or $(TESTS),tests)
	PYTHONPATH=tests $(BIN)/python -m faults.ledger faults.jsonl benchmarks/results/faults.jsonl docs/reliability.md

# Findings are written to fuzz-findings, with the seed that makes them again.
fuzz: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m fuzz --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

soak: setup
	OMP_NUM_THREADS=1 QUINTET_SOAK_MINUTES=60 QUINTET_SOAK_RECORD=$(CURDIR)/benchmarks/results/soak.json \
		$(BIN)/pytest tests/faults/test_soak.py

# More tests of many processes than `make test`. The run folders of the last command remain.
SCALE := runs/scale
scale: setup
	OMP_NUM_THREADS=1 QUINTET_SCALE=whole $(BIN)/pytest -n 2 --dist load tests/contract/test_processes.py \
		tests/integration/test_processes.py tests/integration/test_restarts.py tests/unit/training/test_processes.py
	OMP_NUM_THREADS=1 QUINTET_LAUNCHER=accelerate $(BIN)/pytest -n 2 --dist load tests/contract/test_processes.py
	rm -rf $(SCALE)
	$(BIN)/quintet data make solids $(SCALE)/data --num 64
	for fsdp in false true; do OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc_per_node 2 benchmarks/sharding.py \
		$(SCALE)/data $(SCALE)/fsdp-$$fsdp --fsdp $$fsdp || exit 1; done

bench-vqgan: setup
	$(BIN)/python benchmarks/vqgan.py

# Uses the tokenizer and the data of `make results`.
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

# The data set $(2) and a tokenizer of recipe $(3) in the folder $(1), unless they exist.
define codes
	test -d $(1)/data || $(BIN)/quintet data make $(2) $(1)/data --num 3000
	test -d $(1)/tokenizer || $(BIN)/quintet train $(3) $(1)/data --preset small --out $(1)/tokenizer
endef

bench-soundstorm: setup
	$(call codes,runs/bench-soundstorm,sounds,audio-codec)
	$(BIN)/python benchmarks/soundstorm.py step generate loss
	$(BIN)/python benchmarks/soundstorm.py step generate --precision bf16 --warmup 1

bench-video: setup
	$(call codes,runs/bench-phenaki,motions,cvivit)
	$(BIN)/python benchmarks/cvivit.py
	$(BIN)/python benchmarks/phenaki.py step sample loss

bench-overhead: setup
	$(BIN)/python benchmarks/overhead.py

bench-saving: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/saving.py --waiting
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/saving.py

bench-mfu: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mfu.py

bench-plan: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/plan.py

bench-view: setup
	$(BIN)/python benchmarks/view.py

bench-shards: setup
	$(BIN)/python benchmarks/shards.py runs/bench-shards

# Adds lines to benchmarks/results/speedrun.jsonl and writes the table of docs/speedrun.md.
SEEDS := 0,1,2
speedrun: setup
	$(BIN)/python benchmarks/speedrun.py $(or $(MEDIUM),image) --seeds $(SEEDS) --note "$(NOTE)" $(if $(FULL),--full)

# A test compares the drawing with the source.
figures: setup
	PYTHONPATH=src:tests $(BIN)/python docs/draw_layers.py

# A test compares them with the source.
reference: setup
	PYTHONPATH=src $(BIN)/python -m quintet.cli.reference

# A test compares both with the source.
migration: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m compat.record $(USAGES)
	PYTHONPATH=src $(BIN)/python -m quintet.compat > docs/migration.md
	PYTHONPATH=src $(BIN)/python -m quintet.compat tables > docs/migration-tables.md

results: setup
	$(BIN)/quintet demo image --full --out runs/full
	$(BIN)/python benchmarks/emoji.py $(EMOJI)

# MINUTES=0 only lists and checks.
prove: setup
	$(BIN)/python benchmarks/prove.py --minutes $(or $(MINUTES),60)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
