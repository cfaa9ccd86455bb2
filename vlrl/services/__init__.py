"""What every room may use: processes beside the trainer, HTTP, files, third-party libraries, torch on first use."""
