"""Recorded runs (docs/results/*.json) and everything made from them: runs, tables, plot; `python -m common.results`."""
