"""What any client has on the servers: objects, their owners and their waiters. Only `unlocking` writes."""
