#!/usr/bin/env bash
# starter:mesh-generator, text to mesh: brick parts of LDraw, on the built-in tokenizer `woven`; 50 minutes of one core.
source "$(dirname "$0")/common.sh"
# The package is in the component non-free of Debian, because CC-BY-2.0 is not among its free licences.
if [ ! -d "$WORK/bricks" ]; then
  (cd "$PACKAGES" && apt-get download ldraw-parts && dpkg-deb -x ldraw-parts_*.deb ldraw)
  version=$(dpkg-deb --field "$PACKAGES"/ldraw-parts_*.deb Version)
  "$PYTHON" "$HERE/meshes.py" "$PACKAGES/ldraw/usr/share/ldraw" "$version" "$WORK/bricks"
fi
quintet train mesh-transformer "$WORK/bricks" --tokenizer woven --out "$WORK/runs/mesh-generator" --preset small \
  --budget 50m data.max_faces=300 model.max_faces=300 model.text=words data.variants=32 eval.num_generated=0 \
  eval.batches=null engine.launch=1 engine.threads=1
card mesh-generator --summary "text to mesh: building-brick parts of at most 300 faces" --figures loss,accuracy
