"""The view model: pure functions from a snapshot and its history to frozen rows of text and numbers."""
