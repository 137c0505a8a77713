"""Prints a migration page: `python -m quintet.compat > docs/migration.md`, with `tables` docs/migration-tables.md."""

from __future__ import annotations

import sys

from quintet.compat.migration_page import page, tables_page

sys.stdout.write(tables_page() if sys.argv[1:] == ["tables"] else page())
