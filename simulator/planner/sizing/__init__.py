"""Does the training of a model fit on a kind of card, on how many, and which changes would make it fit?"""
