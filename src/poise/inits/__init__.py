"""Inits: prompts from which tuning starts. Each module fits one kind; `convert` reads published checkpoints."""
