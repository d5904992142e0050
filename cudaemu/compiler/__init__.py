"""From a kernel.cu to something that runs or can be read: compilers, torch's loader, machine code."""
