"""Network modules and losses that more than one family uses."""
