"""What measures: speed, memory and correctness on real machines. No part of the wheel;
`python -m benchmarks.NAME` at the root of the checkout. docs/benchmarks.md has the figures.
"""
