"""`python -m quintet`, which is also how torchrun starts it."""

from quintet.cli import main

main()
