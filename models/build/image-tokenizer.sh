#!/usr/bin/env bash
# starter:image-tokenizer, from emoji and icons of the npm registry: about 25 minutes of one core.
source "$(dirname "$0")/common.sh"
source "$HERE/emoji_packages.sh"
[ -d "$WORK/images" ] || "$PYTHON" "$HERE/images.py" "$PACKAGES/node_modules" "$WORK/images"
quintet train vqgan "$WORK/images" --out "$WORK/runs/image-tokenizer" --preset small \
  model.dim=24 model.num_quantizers=3 train.steps=10000 loss.discriminator_start=7500 \
  eval.batches=null eval.every=2000 sample.every=2500 checkpoint.every=1000 engine.launch=1 engine.threads=1
card image-tokenizer --summary "image tokenizer for emoji, icons and drawings at 64 px" \
  --figures psnr,ssim,codebook_usage
