"""The verbs of the command line, one file each: `python -m kernels.NN_name VERB` (common/cli.py calls them)."""
