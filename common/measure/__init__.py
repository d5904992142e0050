"""Measuring on a GPU: times, contests between kernels and libraries, ceilings, hardware counters."""
