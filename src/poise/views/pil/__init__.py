"""Views made with Pillow, the reference implementation."""
