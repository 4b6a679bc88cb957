"""What is said to a server and what its replies mean, without I/O."""
