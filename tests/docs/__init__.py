"""The pages: their blocks, and what is made from the code."""
