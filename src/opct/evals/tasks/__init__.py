"""What is asked: one axis a file."""
