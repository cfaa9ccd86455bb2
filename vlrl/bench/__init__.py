"""Side-by-side measurements; `scripts/bench_*` call them."""
