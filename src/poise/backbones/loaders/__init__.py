"""Model names to encoders, one file per source."""
