#!/usr/bin/env bash
# Installs the public mesh package in a separate environment. Its text encoders need open_clip, which needs a torchvision
# that does not load on a CPU build of torch; the worker of the peer replaces it by an empty module.
set -euo pipefail
target=${1:?folder for the environment}
[ -f "$target/.ready" ] && exit 0
python3 -m venv "$target"
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet --no-deps meshgpt-pytorch==1.8.1 classifier-free-guidance-pytorch==0.7.1
"$target/bin/pip" install --quiet torch==2.13.0 accelerate beartype einops "einx[torch]" ema-pytorch environs ftfy \
  gateloop-transformer huggingface_hub jaxtyping local-attention matplotlib numpy pytorch-custom-utils \
  rotary-embedding-torch safetensors scipy sentencepiece taylor-series-linear-attention==0.1.11 torch_geometric tqdm \
  transformers trimesh vector-quantize-pytorch x-transformers
touch "$target/.ready"
