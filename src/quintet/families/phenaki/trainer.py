"""Owns `PhenakiTrainer`: the loop bound to the recipe `phenaki`, for use in Python."""

from __future__ import annotations

from quintet.core.python_trainer import PythonTrainer
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.recipe import PhenakiRecipe
from quintet.nn.maskgit import MaskGit


class PhenakiTrainer(PythonTrainer):
    config_class = PhenakiConfig
    recipe_class = PhenakiRecipe
    model_class = MaskGit
    needs = ()
