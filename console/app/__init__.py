"""The Textual app over the other packages: state, messages, keys, terminal."""
