"""Published numbers, of the paper and of other methods' papers."""
