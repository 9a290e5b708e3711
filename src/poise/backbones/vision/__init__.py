"""Image towers."""
