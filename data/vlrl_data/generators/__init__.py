"""Tasks that check themselves, in any number, with difficulty as a parameter: each a Source, verified by a reward of the same subject."""
