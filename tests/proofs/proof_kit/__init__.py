"""Proofs of presets: what a mechanism changes (tests/proofs/<id>.yaml), run on, off and reversed."""
