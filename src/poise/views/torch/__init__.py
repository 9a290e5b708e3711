"""Views of many images at once, made by torch."""
