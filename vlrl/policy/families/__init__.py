"""The model families, one file each: how a kind of model is loaded or built, how its media are processed and
placed."""
