"""How the marks of a suite become its figures."""
