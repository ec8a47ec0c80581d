"""Small models beside the engine."""
