"""How a batch of rows runs on a device, and how logits become tokens."""
