"""Text: choices, yes or no, equal words, metrics, mentions, documents, reasoning, translation, groups of
texts."""
