"""Classic plug-ins that many papers use, one file per stage."""
