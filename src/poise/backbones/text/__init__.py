"""Text towers: class names under soft prompts to text features."""
