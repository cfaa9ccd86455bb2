"""The activity report: what every slot of a config did in a few training steps, and which slots did nothing.

`observer` counts while the run trains, `findings` judges the counts, `settings_findings` judges the config
itself, `report` writes both as text, `check` trains a config for a few steps (`vlrl check`).
"""
