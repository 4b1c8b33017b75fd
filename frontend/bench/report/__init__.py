"""Results of benchmarks: figures, tables, plots and JSON. Open report.py first."""
