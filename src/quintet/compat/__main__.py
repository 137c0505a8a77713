"""Prints the migration page: `python -m quintet.compat > docs/migration.md`."""

from __future__ import annotations

import sys

from quintet.compat.migration_page import page

sys.stdout.write(page())
