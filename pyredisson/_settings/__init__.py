"""Every setting of a client, checked."""
