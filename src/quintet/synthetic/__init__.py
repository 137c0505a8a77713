"""Synthetic datasets that are rendered by code, and judges that score generated media."""
