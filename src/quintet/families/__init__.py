"""One folder a family: config.py (no torch), model.py, recipe.py, README.md."""
