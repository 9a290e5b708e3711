"""Views of many images at once, made with torch."""
