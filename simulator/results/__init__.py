"""Results of a run on disk: its directory, pictures, small tables and page."""
