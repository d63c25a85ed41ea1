"""Faults that are planted one by one, to see whether the tests find them."""
