"""Ways out of the package and into it: export, other libraries' tasks, models to download."""
