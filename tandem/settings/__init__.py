"""Settings: the table, the layers their values come from, and the engine configuration that they give."""
