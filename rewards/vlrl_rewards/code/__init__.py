"""Code: unit tests in a sandbox, and edits compared with a reference."""
