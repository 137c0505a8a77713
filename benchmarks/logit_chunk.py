"""Peak memory of output layer and loss with a large vocabulary, with and without `loss.logit_chunk`.

`python benchmarks/logit_chunk.py` prints a row for each, measured in a process of its own: the high-water mark of
resident memory (ru_maxrss) above that before the forward pass.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from functools import partial

import torch
from torch import nn

from quintet.nn.chunked_loss import ChunkedLoss, chunk_size
from quintet.training.maskgit_task import code_losses, mean_loss

POSITIONS, CODES, DIM = 2304, 65_536, 512
"""All tokens of a clip of Phenaki's preset base, and the codes of a tokenizer with 16 bits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=("null", "auto"), help="print the row of this value of the key")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    print(f"{POSITIONS} positions, {CODES} codes, dim {DIM}, fp32")
    print("| loss.logit_chunk | peak | CPU time |\n|---|---|---|", flush=True)
    for setting in ("null", "auto"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, __file__, "--measure", setting], check=True, env=environment)


def measure(setting: str) -> None:
    torch.manual_seed(0)
    head, targets = nn.Linear(DIM, CODES), torch.randint(CODES, (POSITIONS,))
    hidden = torch.randn(POSITIONS, DIM, requires_grad=True)
    losses = partial(code_losses, label_smoothing=0.1)
    before, began = peak(), time.process_time()
    size = chunk_size("auto" if setting == "auto" else None, CODES, POSITIONS)
    if size is None:
        logits = head(hidden)
        loss = mean_loss(losses(logits, targets), logits.argmax(-1) == targets)
    else:
        loss = mean_loss(*ChunkedLoss(losses, (targets,), size)(hidden, head))
    loss.value.backward()  # type: ignore[no-untyped-call]
    print(f"| {setting} | {(peak() - before) / 1e6:,.0f} MB | {time.process_time() - began:.1f} s |")


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
