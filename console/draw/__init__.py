"""Draws each region as lines of toned text for a given width: pure functions of the frame's view."""
