"""What the screen says, one file a part: pure functions from a snapshot and its past to frozen rows of words."""
