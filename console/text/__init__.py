"""Styled text and figures, free of any terminal library."""
