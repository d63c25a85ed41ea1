"""What several tests need: small files of each data set's form, runs as files, the command's one line."""
