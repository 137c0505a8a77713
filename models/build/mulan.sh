#!/usr/bin/env bash
# starter:mulan, similarity of sounds and texts: from the same notes, drums and speech.
source "$(dirname "$0")/common.sh"
debian_packages fluid-soundfont-gm espeak-ng
[ -d "$WORK/audio" ] || "$PYTHON" "$HERE/audio.py" /usr/share/sounds/sf2/FluidR3_GM.sf2 "$WORK/audio"
quintet train mulan "$WORK/audio" --out "$WORK/runs/mulan" --preset small --budget 45m data.seconds=2.0 \
  eval.batches=null engine.launch=1 engine.threads=1
card mulan --summary "similarity of sounds and texts, for notes, drums and speech" --figures text_to_audio_r1,text_to_audio_r10,text_to_audio_mrr,compared
