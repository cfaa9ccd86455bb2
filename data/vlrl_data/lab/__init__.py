"""Small tasks on real handwritten digits and photographs that ship inside Python packages, on which methods
are compared."""
