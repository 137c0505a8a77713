"""Once imported, nothing that trains can be: as in a process that has only what the use of a model needs."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

FORBIDDEN = ("quintet.training", "quintet.runs")


class Refusing(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if ".".join(name.split(".")[:2]) in FORBIDDEN:
            raise ImportError(f"{name} is not there in this process")


sys.meta_path.insert(0, Refusing())
