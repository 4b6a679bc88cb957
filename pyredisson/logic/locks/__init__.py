"""Every kind of lock."""
