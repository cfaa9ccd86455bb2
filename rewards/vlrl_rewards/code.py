"""kind="code": placeholder until the sandbox lands."""
