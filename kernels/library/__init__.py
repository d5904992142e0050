"""What programs call: `from kernels import attention, attention_fp8, matmul`.

A stage is a lesson; a function here takes whatever is best for a call, on whatever device the tensors are: a stage, or
a kernel of its own. Such a kernel is a folder here; it has all that a stage has but a notebook and a place in the
course: `python -m kernels.library.NAME test`, and the other verbs.
"""
