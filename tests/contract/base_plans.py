"""Writes `base_plans.json`, what the preset `base` of every recipe needs: `python -m contract.base_plans` in tests/."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from quintet import config as configs
from quintet import registry
from quintet.config import RunConfig
from quintet.training.planning.building import planned_task
from quintet.training.planning.devices import DEVICES
from quintet.training.planning.plan import Costs, Plan, measure_costs

FILE = Path(__file__).parent / "base_plans.json"
PRESET = "base"


def base_settings(recipe: str) -> RunConfig:
    settings: RunConfig = configs.build(registry.find(recipe).config_class(), preset=PRESET)
    return settings


@cache
def base_costs(recipe: str) -> Costs:
    settings = base_settings(recipe)
    return measure_costs(planned_task(settings, PRESET), "cuda", settings.engine.precision)


def base_plan(recipe: str, device: str) -> Plan:
    settings = base_settings(recipe)
    return Plan(settings, DEVICES[device], 1, settings.engine.precision, base_costs(recipe))


def figures(recipe: str) -> dict[str, int]:
    costs = base_costs(recipe)
    return {
        "parameters": costs.state.parameters,
        "state_megabytes": round(costs.state.total / 1e6),
        "activation_megabytes_per_sample": round(costs.activations.per_sample / 1e6),
        "gigaflops_per_sample": round(sum(costs.flops.values()) / 1e9),
    }


if __name__ == "__main__":
    found = {recipe: figures(recipe) for recipe in registry.RECIPES}
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
