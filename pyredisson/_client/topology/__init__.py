"""How a client of several servers knows which of them serves what."""
