"""What `vlrl data` does, as functions over rows: stats, dedup, decontaminate, difficulty, split, preview."""
