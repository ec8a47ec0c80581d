"""What is kept of a conversation."""
