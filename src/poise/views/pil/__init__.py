"""Views made by Pillow, the reference."""
