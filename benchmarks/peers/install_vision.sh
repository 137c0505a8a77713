#!/usr/bin/env bash
# The public packages of images and video in an environment of their own, outside the project's. torchvision's compiled
# part does not load on a CPU build of torch; a peer's worker declares two operators so that its Python part imports.
set -euo pipefail
target=${1:?folder for the environment}
# An environment of before there was video lacks a package.
[ -f "$target/.ready" ] && "$target/bin/pip" show --quiet phenaki-pytorch && exit 0
python3 -m venv "$target"
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet --no-deps torchvision==0.28.0 muse-maskgit-pytorch==0.3.5 phenaki-pytorch==0.5.0
"$target/bin/pip" install --quiet torch==2.13.0 accelerate beartype einops ema-pytorch \
  memory-efficient-attention-pytorch opencv-python-headless pillow sentencepiece transformers tqdm \
  vector-quantize-pytorch numpy
touch "$target/.ready"
