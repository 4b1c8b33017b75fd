"""Products with packed weights, in parts that ranks share."""
