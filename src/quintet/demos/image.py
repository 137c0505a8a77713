"""Owns `quintet demo image`: pictures of shapes; their tokenizer, resumed once; Muse, which draws from captions."""

from __future__ import annotations

from quintet.demos.demo import Demo, Length, Stage
from quintet.demos.table import Figure

TOKENIZER = Stage(
    name="tokenizer",
    recipe="vqgan",
    quick=Length(steps=1500, every=250),
    full=Length(steps=5000, every=500),
    share=0.3,
    pace=12.0,
    # The discriminator is active for the last third.
    keys=lambda steps, judged: (f"loss.discriminator_start={steps * 2 // 3}",),
    interrupted=True,
    figures=(
        Figure("psnr", "PSNR of unseen pictures", 30.0, "dB"),
        Figure("codebook_usage", "codes in use", 0.5),
    ),
)
MUSE = Stage(
    name="muse",
    recipe="muse",
    quick=Length(steps=800, every=200),
    full=Length(steps=9000, every=1000),
    share=0.7,
    pace=3.5,
    links=(("tokenizer", "tokenizer"),),
    keys=lambda steps, judged: (f"eval.generated={judged}",),
    figures=(
        Figure("match_colour", "colour as unseen captions say", 0.95),
        Figure("match_position", "position", 0.9),
        Figure("match_shape", "shape", 0.9, of="match_shape_reconstruction", why="0.9 of reconstructions"),
        Figure("match_withheld", "colour and shape of pairs never trained on", 0.6),
    ),
)
DEMO = Demo(
    medium="image",
    data="shapes",
    quick_num=4000,
    full_num=48_000,
    quick_judged=128,
    full_judged=500,
    minutes=60,
    stages=(TOKENIZER, MUSE),
    texts=(
        "a large red heart in the centre",
        "a small blue star at the top left and a large yellow ring at the bottom right",
        "a green triangle on the left",
        "a black cross on the right and a pink circle on the left",
    ),
    each=8,
    made="drawn",
    look="OUT/drawn/grid.png (a row for each text), OUT/tokenizer/samples/, OUT/muse/samples/",
    then=('quintet sample OUT/muse --text "a purple diamond at the top" --out out/', "quintet train vqgan YOUR_FOLDER"),
)
