"""Rows for training and evaluation: sources, media, record families, lab tasks and generators.

- `sources/`: what `data:` in a config names: files, image folders, WebDataset tars, Hugging Face datasets.
- `records`, `record_families/`, `row_builder`, `validation`, `dataset`, `quarantine`: a record of a file
  becomes a checked `Row`, or a reason.
- `media/`: images and videos of every kind a dataset column can hold.
- `lab/`, `generators/`: tasks that generate their rows.
- `tools/`, `cli`: what `vlrl data` does.
"""
