"""A request, its sequences and their states; tenants; the order of sequences; when one ends. Open request.py first."""
