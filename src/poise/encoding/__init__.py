"""Class texts and views under a prompt: features and gradients."""
