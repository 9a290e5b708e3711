"""Benchmark runs: per-image records that survive any interruption (`run`), from plain configurations (`config`)."""
