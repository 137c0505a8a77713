"""The module `attention` of phenaki-pytorch, whose names are refused."""

from __future__ import annotations

from quintet.compat.names import refuse_names

__getattr__ = refuse_names(__name__, "the layers of the transformers are in quintet.nn")
