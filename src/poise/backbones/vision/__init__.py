"""Forward passes of image towers."""
