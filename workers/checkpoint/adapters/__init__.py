"""What adapters add to projections: the matrices as they are in memory."""
