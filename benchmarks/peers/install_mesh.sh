#!/usr/bin/env bash
# The public mesh package in an environment of its own, outside the project's. Its text encoders want open_clip, which
# wants a torchvision that does not load on a CPU build of torch; the peer's worker lets an empty module stand for it.
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
