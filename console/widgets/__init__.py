"""Textual widgets: each renders a frozen view, none fetches or decides anything."""
