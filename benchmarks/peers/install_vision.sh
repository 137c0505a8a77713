#!/usr/bin/env bash
# Installs the public image and video packages in a separate environment. The compiled part of torchvision does not load
# on a CPU build of torch; the workers of the peers declare two operators, so that its Python part can be imported.
set -euo pipefail
target=${1:?folder for the environment}
# An older environment lacks the video package.
[ -f "$target/.ready" ] && "$target/bin/pip" show --quiet phenaki-pytorch && exit 0
python3 -m venv "$target"
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet --no-deps torchvision==0.28.0 muse-maskgit-pytorch==0.3.5 phenaki-pytorch==0.5.0
"$target/bin/pip" install --quiet torch==2.13.0 accelerate beartype einops ema-pytorch \
  memory-efficient-attention-pytorch opencv-python-headless pillow sentencepiece transformers tqdm \
  vector-quantize-pytorch numpy
touch "$target/.ready"
