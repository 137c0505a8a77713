#!/usr/bin/env bash
# starter:video-tokenizer, from animated emoji of the npm registry: an hour of one core.
source "$(dirname "$0")/common.sh"
source "$HERE/emoji_packages.sh"
npm_packages @lobehub/fluent-emoji-anim-1@1.0.0 @lobehub/fluent-emoji-anim-2@1.0.0 \
  @lobehub/fluent-emoji-anim-3@1.0.0 @lobehub/fluent-emoji-anim-4@1.0.0
[ -d "$WORK/video" ] || "$PYTHON" "$HERE/video.py" "$PACKAGES/node_modules" "$WORK/video"
quintet train cvivit "$WORK/video" --out "$WORK/runs/video-tokenizer" --preset small --budget 60m \
  model.image_size=64 model.num_quantizers=2 train.batch_size=2 eval.batches=null sample.num=4 \
  engine.launch=1 engine.threads=1
card video-tokenizer --summary "video tokenizer for animated drawings at 64 px" --figures psnr,ssim,codebook_usage
