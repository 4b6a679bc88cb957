"""What a user types, on both backends."""
