"""What benchmarks/run.py is made of."""
