#!/usr/bin/env bash
# Installs the public audio packages in a separate environment. fairseq does not build, wandb and torchvision are not
# needed, and the compiled part of torchaudio needs CUDA; `audio_stand_ins.py` replaces them by empty modules.
set -euo pipefail
target=${1:?folder for the environment}
[ -f "$target/.ready" ] && exit 0
python3 -m venv "$target"
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet torch==2.13.0 accelerate==1.15.0 beartype==0.23.1 einops==0.8.2 ema-pytorch==0.8.3 \
  encodec==0.1.1 ftfy gateloop-transformer==0.2.5 hyper-connections==0.4.11 joblib lion-pytorch==0.2.5 \
  local-attention==1.11.2 numpy packaging psutil pytorch-warmup==0.2.0 regex rotary-embedding-torch==0.9.1 safetensors \
  scikit-learn sentencepiece soundfile tqdm transformers==5.22.2 vector-quantize-pytorch==1.32.0
"$target/bin/pip" install --quiet --no-deps audiolm-pytorch==2.4.0 musiclm-pytorch==0.2.8 soundstorm-pytorch==0.6.1 \
  spear-tts-pytorch==0.4.8 torchaudio==2.11.0 x-clip==0.14.4
touch "$target/.ready"
