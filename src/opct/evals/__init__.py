"""What a reply means, what a difference between models means, and the tasks that measure both."""
