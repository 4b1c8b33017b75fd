"""What adapters add to projections, as it lies in memory."""
