"""Sources that read datasets: files of records, media folders, WebDataset tars, Hugging Face datasets."""
