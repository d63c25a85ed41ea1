"""Pages to play with, on this machine alone: Table 1 under one's hands, and trained networks that write and draw."""
