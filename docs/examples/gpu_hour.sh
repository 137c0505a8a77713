#!/usr/bin/env bash
# Everything that needs a real GPU, in about one rented hour: the tests of CUDA, the speed and memory of each recipe.
# Writes docs/results/gpu.md. Run it in a clone, on a machine with an NVIDIA GPU and Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/../.."
make setup
.venv/bin/python benchmarks/gpu_hour.py "$@"
