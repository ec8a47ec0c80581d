"""Draws each region as lines of styled text for a given width: pure functions of the view model."""
