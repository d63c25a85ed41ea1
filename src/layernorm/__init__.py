"""Layer Normalization (Ba, Kiros, Hinton 2016, arXiv:1607.06450) for PyTorch."""
