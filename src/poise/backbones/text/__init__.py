"""Forward passes of text towers: from class names and soft prompts to text features."""
