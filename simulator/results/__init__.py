"""What a run leaves on disk: its directory, and the pictures in it."""
