"""What programs call: `from kernels import attention, attention_fp8, matmul`.

A stage is a lesson; a function here takes whichever stage is best for a call, on whatever device the tensors are.
"""
