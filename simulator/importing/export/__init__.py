"""How is a scenario's training written as another program's configuration? A writer for each program, and a check."""
