"""Inits: where tuning starts. Each file fits one kind of prompt; `convert` reads published ones."""
