"""Real arrays: a small GPT that trains, its optimizer, its arithmetic. Knows no GPU, no clock, no cost model."""
