"""Proof that a change alters no byte of any result: `make identity BASE=REV`.

Two revisions run the same commands on one machine, and everything they compute is compared exactly.
Nothing is stored in the repository, because bytes differ between kinds of CPU.

    cases.py     what is run: the trainings and what is done with their models
    inputs.py    small files that its commands read
    keys.py      keys, options and files whose names differ between the two revisions
    sides.py     a revision on disk, and running its commands
    record.py    what a case left, as numbers, tensors and files
    compare.py   the first difference between two records
    driver.py    all cases on both sides
"""
