"""What a body asks for: its fields, and what becomes of them."""
