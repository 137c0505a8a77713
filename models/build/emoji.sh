#!/usr/bin/env bash
# starter:emoji, text to image on starter:image-tokenizer: 75 minutes of one core.
source "$(dirname "$0")/common.sh"
source "$HERE/emoji_packages.sh"
[ -d "$WORK/emoji" ] || "$PYTHON" "$HERE/images.py" "$PACKAGES/node_modules" "$WORK/emoji" --emoji
quintet train muse "$WORK/emoji" --tokenizer starter:image-tokenizer --out "$WORK/runs/emoji" --preset small \
  --budget 75m "model.code_patch_size=[2,2,3]" model.dim=192 train.batch_size=32 eval.batches=null \
  engine.launch=1 engine.threads=1
"$PYTHON" "$HERE/measure_emoji.py" "$WORK/runs/emoji" "$WORK/emoji.json"
card emoji --summary "text to emoji at 64 px: a subject, then optionally ', Noto' or ', Twemoji'" \
  --figures loss,accuracy --more "$WORK/emoji.json"
