"""What every layer above uses: random numbers, statistics, batches, collectives, files."""
