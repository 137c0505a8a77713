"""Building blocks that more than one family uses."""
