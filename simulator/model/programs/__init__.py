"""What does a framework launch for each part of a model? PyTorch's eager operations, and modules made of them."""
