"""Small tasks on real handwritten digits and real photographs that ship inside Python packages: the ground on which methods are tried."""
