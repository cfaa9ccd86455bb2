"""Tasks with verifiable answers, in any number and with adjustable difficulty: each is a Source, verified by
a reward of the same subject."""
