"""What runs next, where, and why a request waits: pure decisions and the inbox."""
