"""What the documents, the examples and the benchmarks show is true."""
