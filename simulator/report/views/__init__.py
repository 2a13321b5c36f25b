"""What can be looked at of one played point: its spans, memory and links, as plain data that a page draws."""
