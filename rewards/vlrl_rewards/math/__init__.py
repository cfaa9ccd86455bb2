"""Mathematics: reading answers, exact comparison, units, dates, closeness of numbers."""
