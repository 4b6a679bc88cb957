"""Several locks held as one."""
