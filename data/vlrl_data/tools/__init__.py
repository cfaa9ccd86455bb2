"""What `vlrl data` does, as functions over rows: convert, stats, duplicates, lengths, split, preview, pass
rates from rollouts, mixtures."""
