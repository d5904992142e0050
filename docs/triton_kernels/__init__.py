"""Public Triton kernels in the emulator, unchanged, each compared with torch on the CPU: see __main__.py."""
