"""What a user types, in both worlds."""
