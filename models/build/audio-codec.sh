#!/usr/bin/env bash
# starter:audio-codec, from notes, drums and speech at 16 kHz.
source "$(dirname "$0")/common.sh"
debian_packages fluid-soundfont-gm espeak-ng
[ -d "$WORK/audio" ] || "$PYTHON" "$HERE/audio.py" /usr/share/sounds/sf2/FluidR3_GM.sf2 "$WORK/audio"
quintet train audio-codec "$WORK/audio" --out "$WORK/runs/audio-codec" --preset small \
  train.steps=1500 loss.discriminator_start=1200 model.num_loudness_quantizers=8 model.codebook_size=256 \
  eval.every=300 sample.every=500 checkpoint.every=300 eval.batch_size=4 eval.batches=null \
  engine.launch=1 engine.threads=1
card audio-codec --summary "audio codec for notes, drums and speech at 16 kHz" --figures mel_distance,stft_distance,si_sdr,bitrate_kbps
