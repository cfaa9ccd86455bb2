"""What every room may use: processes, HTTP, files, third-party libraries, torch on first use."""
