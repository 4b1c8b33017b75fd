"""What was measured: figures, tables, plots. Open report.py first."""
