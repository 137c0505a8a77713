"""Owns `quintet demo mesh`: low-poly solids; a tokenizer of them; a transformer that makes meshes from captions.

The transformer is trained on plain coordinates, which is the shorter way to a generator: nothing has to be learned
first, and its vocabulary is a thirtieth of the learned tokenizer's.
"""

from __future__ import annotations

from quintet.demos.demo import Demo, Length, Stage
from quintet.demos.table import Figure

TOKENIZER = Stage(
    name="tokenizer",
    recipe="mesh-autoencoder",
    quick=Length(steps=600, every=200),
    full=Length(steps=6000, every=1000),
    share=0.4,
    pace=4.0,
    figures=(
        Figure("coordinate_accuracy", "coordinates of unseen meshes within a bin", 0.97),
        Figure("chamfer", "Chamfer distance, longest side 1", 0.02, "", digits=4, below=True),
    ),
)
TRANSFORMER = Stage(
    name="transformer",
    recipe="mesh-transformer",
    quick=Length(steps=600, every=200),
    full=Length(steps=3600, every=600),
    share=0.6,
    pace=1.5,
    links=(("tokenizer", "coordinates"),),
    # There are enough meshes, and captions name proportions, which stretching would change.
    keys=lambda steps, judged: ("data.augment=false", f"eval.generated={judged}"),
    figures=(
        Figure("valid", "valid meshes from unseen captions", 0.9),
        Figure("match_class", "class as the caption says", 0.85),
        Figure("watertight", "watertight"),
    ),
)
DEMO = Demo(
    medium="mesh",
    data="solids",
    quick_num=2000,
    full_num=20_000,
    quick_judged=64,
    full_judged=200,
    minutes=60,
    stages=(TOKENIZER, TRANSFORMER),
    texts=("a tall table", "a low wide house", "a chair", "stairs"),
    each=4,
    made="made",
    look="OUT/made/sheet.png (a row for each text), OUT/made/*.glb, OUT/tokenizer/samples/",
    then=(
        'quintet sample OUT/transformer --text "a wide bench" --out out/',
        "quintet train mesh-autoencoder YOUR_FOLDER",
    ),
)
