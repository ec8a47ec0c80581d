"""The terminal console: reads /health, never touches the engine."""
