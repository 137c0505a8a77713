"""The module `t5` of phenaki-pytorch, whose names are refused."""

from __future__ import annotations

from quintet.compat.names import refuse_names

__getattr__ = refuse_names(__name__, "quintet encodes texts itself; pass t5_name= a local folder, or text_embeds")
