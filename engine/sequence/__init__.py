"""What runs: a request inside the engine, the sequences it runs as, and the slots that hold them."""
